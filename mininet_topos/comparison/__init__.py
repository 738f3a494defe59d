"""The emulation compared with what others wrote: Linux routers, BMv2 and ns-3, under the same load."""
