// Runs a scenario in ns-3: reads its description on standard input, and writes what it measured as JSON.
//
// One item a line, in this order, with nodes and links by number from 0, and 0 for what a flow has not:
//
//	run SECONDS WARM_UP_S SEED
//	nodes COUNT
//	link NODE NODE RATE_MBPS LIMIT_BYTES LIMIT_BYTES DELAY_MS (the limit of each end's queue)
//	queue LINK END (0 or 1: the queue that is measured)
//	flow SOURCE SINK CONTROL RATE_MBPS PAYLOAD_BYTES
//
// What waits for a link waits in its device's queue, since no device has a queueing discipline. A frame is as long as on
// Ethernet. TCP is set as Linux sets it, as far as ns-3 can: it has no small queues, no loss probes and no RACK.
#include <ns3/boolean.h>
#include <ns3/config.h>
#include <ns3/double.h>
#include <ns3/drop-tail-queue.h>
#include <ns3/inet-socket-address.h>
#include <ns3/internet-stack-helper.h>
#include <ns3/ipv4-address-helper.h>
#include <ns3/ipv4-global-routing-helper.h>
#include <ns3/ipv4-interface-container.h>
#include <ns3/ipv4.h>
#include <ns3/net-device-container.h>
#include <ns3/node-container.h>
#include <ns3/point-to-point-channel.h>
#include <ns3/point-to-point-net-device.h>
#include <ns3/random-variable-stream.h>
#include <ns3/rng-seed-manager.h>
#include <ns3/simulator.h>
#include <ns3/socket.h>
#include <ns3/string.h>
#include <ns3/tcp-header.h>
#include <ns3/tcp-l4-protocol.h>
#include <ns3/tcp-socket-base.h>
#include <ns3/udp-socket-factory.h>
#include <ns3/uinteger.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

using namespace ns3;

constexpr uint32_t ETHERNET_HEADER = 14, PPP_HEADER = 2;
constexpr uint32_t DATAGRAM = 1472;           // bytes of payload of a UDP flow's packet
constexpr uint32_t SEGMENT = 1448;            // bytes of payload of a TCP segment, beside its timestamps
constexpr uint32_t SOCKET_BUFFER = 6'000'000; // bytes
constexpr uint32_t PROBE = 64;                // bytes of payload
constexpr uint16_t PROBE_PORT = 7, FLOW_PORT = 5000;
const Time PROBE_INTERVAL = MilliSeconds(20), PROBE_JITTER = MilliSeconds(1), LATEST_START = MilliSeconds(10);

const std::map<std::string, std::string> CONTROLS = {
	{"reno", "ns3::TcpLinuxReno"},
	{"cubic", "ns3::TcpCubic"},
	{"bbr", "ns3::TcpBbr"},
};

// One end of a link. Its frames are as long as on Ethernet; the receiver's IP cuts off what it does not know.
class Port : public PointToPointNetDevice
{
      public:
	bool Send(Ptr<Packet> packet, const Address &to, uint16_t protocol) override
	{
		packet->AddPaddingAtEnd(ETHERNET_HEADER - PPP_HEADER);
		return PointToPointNetDevice::Send(packet, to, protocol);
	}
};

// The period that is measured.
struct Period {
	Time begin, end;

	bool Has(Time time) const
	{
		return begin <= time && time < end;
	}
};

// How long a queue had how many bytes.
class Depth
{
      public:
	explicit Depth(const Period &period) : m_period(period)
	{
	}

	void Changed(uint32_t before, uint32_t now)
	{
		Time from = std::max(m_since, m_period.begin), to = std::min(Simulator::Now(), m_period.end);
		if (from < to)
			m_times[before] += (to - from).GetSeconds();
		m_since = Simulator::Now();
		m_bytes = now;
	}

	void Finish()
	{
		Changed(m_bytes, m_bytes);
	}

	double Mean() const
	{
		double sum = 0;
		for (auto [bytes, seconds] : m_times)
			sum += bytes * seconds;
		return sum / Total();
	}

	// The depth that was not exceeded for `part` of the time.
	double Quantile(double part) const
	{
		double left = part * Total();
		for (auto [bytes, seconds] : m_times)
			if ((left -= seconds) <= 0)
				return bytes;
		return m_times.empty() ? NAN : m_times.rbegin()->first;
	}

      private:
	double Total() const
	{
		double sum = 0;
		for (auto [bytes, seconds] : m_times)
			sum += seconds;
		return sum;
	}

	const Period &m_period;
	std::map<uint32_t, double> m_times;
	Time m_since;
	uint32_t m_bytes = 0;
};

// A flow. One with a payload is measured from its start, every other one in the period that is measured.
class Flow
{
      public:
	Flow(const Period &period, uint64_t payload) : m_period(period), m_payload(payload)
	{
	}

	virtual ~Flow() = default;
	virtual void Start() = 0;
	virtual double Lost() const = 0;

	bool HasPayload() const
	{
		return m_payload > 0;
	}

	bool IsDone() const
	{
		return m_payload && m_arrived >= m_payload;
	}

	double Took() const
	{
		return IsDone() ? m_done.GetSeconds() : NAN;
	}

	double Goodput() const
	{
		Time begin = m_payload ? Time() : m_period.begin, end = IsDone() ? m_done : m_period.end;
		return m_arrived * 8 / (end - begin).GetSeconds() / 1e6;
	}

	std::function<void()> done = [] {};

      protected:
	bool IsMeasured() const
	{
		return m_payload ? Simulator::Now() < m_period.end : m_period.Has(Simulator::Now());
	}

	void Arrived(uint64_t bytes)
	{
		if (!IsMeasured() || IsDone())
			return;
		m_arrived += bytes;
		if (!IsDone())
			return;
		m_arrived = m_payload;
		m_done = Simulator::Now();
		done();
	}

	const Period &m_period;
	const uint64_t m_payload;

      private:
	uint64_t m_arrived = 0;
	Time m_done;
};

class TcpFlow : public Flow
{
      public:
	TcpFlow(const Period &period, uint64_t payload, Ptr<Node> source, Ptr<Node> sink, InetSocketAddress to,
		const std::string &control)
	    : Flow(period, payload), m_to(to), m_left(payload ? payload : UINT64_MAX)
	{
		TypeId type = TypeId::LookupByName(CONTROLS.at(control));
		m_socket = source->GetObject<TcpL4Protocol>()->CreateSocket(type);
		m_listening = sink->GetObject<TcpL4Protocol>()->CreateSocket(type);
		m_listening->Bind(InetSocketAddress(Ipv4Address::GetAny(), to.GetPort()));
		m_listening->Listen();
		m_listening->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address &>(),
					       MakeCallback(&TcpFlow::Accept, this));
		m_socket->Bind();
		m_socket->SetConnectCallback(MakeCallback(&TcpFlow::Connected, this),
					     MakeNullCallback<void, Ptr<Socket>>());
		m_socket->SetSendCallback(MakeCallback(&TcpFlow::Fill, this));
		m_socket->TraceConnectWithoutContext("Tx", MakeCallback(&TcpFlow::Sent, this));
	}

	void Start() override
	{
		m_socket->Connect(m_to);
	}

	double Lost() const override
	{
		return m_sent ? double(m_again) / m_sent : 0;
	}

      private:
	void Connected(Ptr<Socket> socket)
	{
		Fill(socket, socket->GetTxAvailable());
	}

	void Fill(Ptr<Socket> socket, uint32_t available)
	{
		uint64_t bytes = std::min<uint64_t>(available, m_left);
		if (bytes && socket->Send(Create<Packet>(bytes)) > 0)
			m_left -= bytes;
	}

	// A segment that ends no later than an earlier one is sent again.
	void Sent(Ptr<const Packet> packet, const TcpHeader &header, Ptr<const TcpSocketBase>)
	{
		if (!packet->GetSize())
			return;
		SequenceNumber32 end = header.GetSequenceNumber() + packet->GetSize();
		bool again = m_any && end <= m_highest;
		if (!again)
			m_highest = end;
		m_any = true;
		if (IsMeasured()) {
			m_sent++;
			m_again += again;
		}
	}

	void Accept(Ptr<Socket> socket, const Address &)
	{
		socket->SetRecvCallback(MakeCallback(&TcpFlow::Receive, this));
	}

	void Receive(Ptr<Socket> socket)
	{
		while (Ptr<Packet> packet = socket->Recv())
			if (packet->GetSize())
				Arrived(packet->GetSize());
			else
				break;
	}

	InetSocketAddress m_to;
	uint64_t m_left, m_sent = 0, m_again = 0;
	Ptr<Socket> m_socket, m_listening;
	SequenceNumber32 m_highest;
	bool m_any = false;
};

// A constant rate: one datagram in each interval, anywhere in it. Two flows that were exact to the nanosecond would
// find a full queue in turn, or always the same one of them.
class UdpFlow : public Flow
{
      public:
	UdpFlow(const Period &period, uint64_t payload, Ptr<Node> source, Ptr<Node> sink, InetSocketAddress to,
		double rate_mbps)
	    : Flow(period, payload), m_interval(Seconds(DATAGRAM * 8 / (rate_mbps * 1e6))),
	      m_left(payload ? (payload + DATAGRAM - 1) / DATAGRAM : UINT64_MAX)
	{
		m_socket = Socket::CreateSocket(source, UdpSocketFactory::GetTypeId());
		m_socket->Bind();
		m_socket->Connect(to);
		m_sink = Socket::CreateSocket(sink, UdpSocketFactory::GetTypeId());
		m_sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), to.GetPort()));
		m_sink->SetRecvCallback(MakeCallback(&UdpFlow::Receive, this));
	}

	void Start() override
	{
		if (!m_left || Simulator::Now() >= m_period.end)
			return;
		m_left--;
		Simulator::Schedule(m_random->GetValue() * m_interval, [this] { SendOne(); });
		Simulator::Schedule(m_interval, [this] { Start(); });
	}

	double Lost() const override
	{
		return m_sent ? 1 - double(m_counted) / m_sent : 0;
	}

      private:
	void SendOne()
	{
		uint8_t bytes[DATAGRAM] = {IsMeasured()};
		m_sent += bytes[0];
		m_socket->Send(Create<Packet>(bytes, DATAGRAM));
	}

	void Receive(Ptr<Socket> socket)
	{
		while (Ptr<Packet> packet = socket->Recv()) {
			uint8_t counted = 0;
			packet->CopyData(&counted, 1);
			m_counted += counted;
			Arrived(packet->GetSize());
		}
	}

	Time m_interval;
	uint64_t m_left, m_sent = 0, m_counted = 0;
	Ptr<Socket> m_socket, m_sink;
	Ptr<UniformRandomVariable> m_random = CreateObject<UniformRandomVariable>();
};

// Small packets that go from one host to another and back.
class Probes
{
      public:
	Probes(const Period &period, Ptr<Node> source, Ptr<Node> sink, InetSocketAddress to) : m_period(period)
	{
		m_socket = Socket::CreateSocket(source, UdpSocketFactory::GetTypeId());
		m_socket->Bind();
		m_socket->Connect(to);
		m_socket->SetRecvCallback(MakeCallback(&Probes::Receive, this));
		m_echo = Socket::CreateSocket(sink, UdpSocketFactory::GetTypeId());
		m_echo->Bind(InetSocketAddress(Ipv4Address::GetAny(), to.GetPort()));
		m_echo->SetRecvCallback(MakeCallback(&Probes::Echo, this));
		Simulator::Schedule(period.begin, [this] { Start(); });
	}

	double Mean() const
	{
		return std::accumulate(m_took_ms.begin(), m_took_ms.end(), 0.0) / m_took_ms.size();
	}

	double Quantile(double part)
	{
		if (m_took_ms.empty())
			return NAN;
		std::sort(m_took_ms.begin(), m_took_ms.end());
		return m_took_ms[std::max(0.0, std::ceil(part * m_took_ms.size()) - 1)];
	}

      private:
	void Start()
	{
		if (!m_period.Has(Simulator::Now()))
			return;
		Simulator::Schedule(m_random->GetValue() * PROBE_JITTER, [this] { SendOne(); });
		Simulator::Schedule(PROBE_INTERVAL, [this] { Start(); });
	}

	void SendOne()
	{
		uint8_t bytes[PROBE] = {};
		int64_t now = Simulator::Now().GetNanoSeconds();
		std::memcpy(bytes, &now, sizeof(now));
		m_socket->Send(Create<Packet>(bytes, PROBE));
	}

	void Echo(Ptr<Socket> socket)
	{
		Address from;
		while (Ptr<Packet> packet = socket->RecvFrom(from)) {
			packet->RemoveAllPacketTags();
			socket->SendTo(packet, 0, from);
		}
	}

	void Receive(Ptr<Socket> socket)
	{
		while (Ptr<Packet> packet = socket->Recv()) {
			int64_t then;
			packet->CopyData(reinterpret_cast<uint8_t *>(&then), sizeof(then));
			m_took_ms.push_back((Simulator::Now().GetNanoSeconds() - then) / 1e6);
		}
	}

	const Period &m_period;
	std::vector<double> m_took_ms;
	Ptr<Socket> m_socket, m_echo;
	Ptr<UniformRandomVariable> m_random = CreateObject<UniformRandomVariable>();
};

static void SetTcp()
{
	Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT));
	Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
	Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(SOCKET_BUFFER));
	Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(SOCKET_BUFFER));
	Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
	Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
	Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
	Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
	Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
	Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
	Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue("ns3::TcpPrrRecovery"));
}

// Prints what JSON cannot say as null.
static std::string Number(double value)
{
	if (!std::isfinite(value))
		return "null";
	std::ostringstream out;
	out.precision(12);
	out << value;
	return out.str();
}

class Run
{
      public:
	void Read(std::istream &in)
	{
		for (std::string line; std::getline(in, line);) {
			std::istringstream rest(line);
			std::string what;
			rest >> what;
			if (what == "run")
				ReadRun(rest);
			else if (what == "nodes")
				ReadNodes(rest);
			else if (what == "link")
				ReadLink(rest);
			else if (what == "queue")
				ReadQueue(rest);
			else if (what == "flow")
				ReadFlow(rest);
			else
				rest.setstate(std::ios::failbit);
			if (!rest || !m_random) // the first line has the seed
				throw std::runtime_error("cannot read the line: " + line);
		}
		if (!m_depth || m_flows.empty())
			throw std::runtime_error("the description names no queue or no flow");
	}

	void Do()
	{
		Ipv4GlobalRoutingHelper::PopulateRoutingTables();
		// What is on the way at the end still arrives.
		Simulator::Stop(m_period.end + m_longest);
		Simulator::Run();
		m_depth->Finish();
	}

	void Print(std::ostream &out)
	{
		out << "{\"flows\": [";
		for (size_t i = 0; i < m_flows.size(); i++) {
			const Flow &flow = *m_flows[i];
			out << (i ? ", " : "") << "{\"goodput_mbps\": " << Number(flow.Goodput())
			    << ", \"lost\": " << Number(flow.Lost()) << ", \"seconds\": " << Number(flow.Took()) << "}";
		}
		out << "], \"round_trip_ms\": " << Number(m_probes->Mean())
		    << ", \"round_trip_ms_p99\": " << Number(m_probes->Quantile(0.99))
		    << ", \"queue_bytes\": " << Number(m_depth->Mean())
		    << ", \"queue_bytes_p99\": " << Number(m_depth->Quantile(0.99)) << "}" << std::endl;
	}

      private:
	struct Link {
		Ptr<Port> ports[2];
	};

	void ReadRun(std::istream &in)
	{
		double seconds, warm_up_s;
		uint64_t seed;
		if (in >> seconds >> warm_up_s >> seed) {
			m_period = {Seconds(warm_up_s), Seconds(seconds)};
			RngSeedManager::SetRun(seed);
			m_random = CreateObject<UniformRandomVariable>(); // takes the seed when it is made
		}
	}

	void ReadNodes(std::istream &in)
	{
		uint32_t count;
		if (!(in >> count))
			return;
		m_nodes.Create(count);
		InternetStackHelper stack;
		stack.SetIpv6StackInstall(false);
		stack.Install(m_nodes);
	}

	void ReadLink(std::istream &in)
	{
		uint32_t nodes[2], limits[2];
		double rate_mbps, delay_ms;
		if (!(in >> nodes[0] >> nodes[1] >> rate_mbps >> limits[0] >> limits[1] >> delay_ms))
			return;
		Link link;
		NetDeviceContainer both;
		auto channel = CreateObject<PointToPointChannel>();
		channel->SetAttribute("Delay", TimeValue(Seconds(delay_ms / 1e3)));
		for (int end : {0, 1}) {
			auto queue = CreateObject<DropTailQueue<Packet>>();
			queue->SetMaxSize(QueueSize(QueueSizeUnit::BYTES, limits[end]));
			link.ports[end] = CreateObject<Port>();
			link.ports[end]->SetAddress(Mac48Address::Allocate());
			link.ports[end]->SetDataRate(DataRate(std::llround(rate_mbps * 1e6)));
			link.ports[end]->SetQueue(queue);
			m_nodes.Get(nodes[end])->AddDevice(link.ports[end]);
			link.ports[end]->Attach(channel);
			both.Add(link.ports[end]);
			m_longest += Seconds(limits[end] * 8 / (rate_mbps * 1e6) + delay_ms / 1e3);
		}
		// A port has no NetDeviceQueueInterface, so it gets no queueing discipline, nor is it stopped when full.
		m_addresses.Assign(both);
		m_addresses.NewNetwork();
		m_links.push_back(link);
	}

	void ReadQueue(std::istream &in)
	{
		size_t link, end;
		if (!(in >> link >> end))
			return;
		m_depth = std::make_unique<Depth>(m_period);
		m_links.at(link).ports[end & 1]->GetQueue()->TraceConnectWithoutContext(
			"BytesInQueue", MakeCallback(&Depth::Changed, m_depth.get()));
	}

	void ReadFlow(std::istream &in)
	{
		uint32_t from, to;
		std::string control;
		double rate_mbps;
		uint64_t payload;
		if (!(in >> from >> to >> control >> rate_mbps >> payload))
			return;
		Ptr<Node> source = m_nodes.Get(from), sink = m_nodes.Get(to);
		Ipv4Address address = sink->GetObject<Ipv4>()->GetAddress(1, 0).GetLocal();
		InetSocketAddress target(address, FLOW_PORT + m_flows.size());
		if (!m_probes)
			m_probes = std::make_unique<Probes>(m_period, source, sink,
							    InetSocketAddress(address, PROBE_PORT));
		if (control == "udp")
			m_flows.push_back(
				std::make_unique<UdpFlow>(m_period, payload, source, sink, target, rate_mbps));
		else
			m_flows.push_back(std::make_unique<TcpFlow>(m_period, payload, source, sink, target, control));
		Flow *flow = m_flows.back().get();
		flow->done = [this] { EndIfDone(); };
		// Flows that start at the same moment would lose the same packets.
		Time start = payload ? Seconds(0) : m_random->GetValue() * LATEST_START;
		Simulator::Schedule(start, [flow] { flow->Start(); });
	}

	// The load is over when all flows had a payload and it has arrived.
	void EndIfDone()
	{
		if (!std::all_of(m_flows.begin(), m_flows.end(), [](auto &flow) { return flow->IsDone(); }))
			return;
		m_period.end = Simulator::Now();
		Simulator::Stop(m_longest);
	}

	Period m_period;
	NodeContainer m_nodes;
	Ipv4AddressHelper m_addresses{"10.0.0.0", "255.255.255.252"};
	std::vector<Link> m_links;
	std::vector<std::unique_ptr<Flow>> m_flows;
	std::unique_ptr<Probes> m_probes;
	std::unique_ptr<Depth> m_depth;
	Ptr<UniformRandomVariable> m_random;
	Time m_longest; // that a packet can take there and back
};

int main()
{
	try {
		SetTcp();
		Run run;
		run.Read(std::cin);
		run.Do();
		run.Print(std::cout);
	} catch (const std::exception &error) {
		std::cerr << error.what() << std::endl;
		return 1;
	}
	return 0;
}
