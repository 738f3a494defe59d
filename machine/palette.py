"""Plot styles: each policy, algorithm or job has the same colour in every plot.

The colours are those of Okabe and Ito ("Color Universal Design", 2008), plus Paul Tol's "muted" and "light"
schemes (technical note SRON/EPS/TN/09-002, 2021). They are distinct with any colour vision. Black is for
bounds and ideals. Variants of one algorithm share its colour, and differ in line, marker and hatch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

COLOURS = {
    # routing
    "ecmp": "#F0E442",
    "source": "#56B4E9",
    # strategies
    "recmp": "#B25D00",
    "vclos": "#00634B",
    "ocs-vclos": "#7A1E6C",
    "ocs-relaxed": "#E0A080",
    "balanced-ecmp": "#C0E0E0",
    "least-loaded": "#80A0A0",
    "crux": "#AA66FF",
    "best": "#6000C0",
    # congestion controls, and the slot scheduler
    "reno": "#E69F00",
    "cubic": "#0072B2",
    "dctcp": "#009E73",
    "bbr": "#CC79A7",
    "slots": "#D55E00",
    # cluster schedulers
    "ideal": "#000000",
    "random": "#BBBBBB",
    "themis": "#CC3311",
    "pollux": "#0077BB",
    # coflow policies, and other policies of the simulator
    "parrot": "#332288",
    "aalo": "#88CCEE",
    "lccf": "#117733",
    "d-clas": "#DDCC77",
    "varys": "#CC6677",
    "fifo": "#882255",
    "mcs": "#44AA99",
    "ccml": "#AA4499",
    "fixed-order": "#225577",
    "mltcp": "#999933",
    "cassini": "#4B0082",
    "fair": "#C8C8C8",
    "unfair": "#661100",
}

SPARE = ("#6699CC", "#994455", "#997700", "#EECC66", "#004488", "#EE99AA")
"""Colours of everything without a colour of its own (Tol's "medium-contrast")."""

JOBS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#44BB99", "#BBCC33", "#99DDFF")
"""Colours of an experiment's jobs, in order (Tol's "light")."""

_JOB_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "----")

CROSS = "#444444"
"""Colour of cross traffic."""

Line = str | tuple[int, tuple[int, ...]]

_VARIANTS: dict[str, tuple[Line, str, str]] = {
    "": ("-", "o", ""),
    "mltcp": ("--", "s", "///"),
    "filling": ("--", "s", "///"),
    "shared": ("--", "s", "///"),
    "job": ("--", "s", "///"),
    "2": ("--", "s", "///"),
    "steps": ("--", "s", "///"),
    "cassini": ("--", "s", "///"),
    "equal": ("--", "s", "///"),
    "ordered": ("-.", "^", "\\\\\\"),
    "factor": ("-.", "^", "\\\\\\"),
    "whole": ("-.", "^", "\\\\\\"),
    "weighted": ("-.", "^", "\\\\\\"),
    "unsized": ((0, (3, 1, 1, 1, 1, 1)), "v", "xxx"),
    "drawn": ((0, (3, 1, 1, 1, 1, 1)), "v", "xxx"),
    "started": ((0, (3, 1, 1, 1, 1, 1)), "v", "xxx"),
    "letter": ((0, (1, 1, 1, 1, 1, 1)), "P", "ooo"),
    "wo-wc": (":", "x", "..."),
    "15": ("--", "s", "///"),
    "60": ("-.", "^", "\\\\\\"),
    "120": (":", "x", "..."),
    "15-now": ("-.", "^", "\\\\\\"),
    "15-turns": ((0, (3, 1, 1, 1, 1, 1)), "v", "xxx"),
    "15-take-back": ((0, (8, 2, 2, 2)), "<", "|||"),
    "horizon": (":", "x", "..."),
    "now": ((0, (1, 1, 1, 1, 1, 1)), "P", "ooo"),
    "turns": ((0, (5, 1, 1, 1, 1, 1)), "d", "+++"),
    "take-back": ((0, (8, 2, 2, 2, 2, 2)), "D", "---"),
    # policies that run with several congestion controls
    "reno": ("-", "o", ""),
    "cubic": ("-.", "^", "\\\\\\"),
    "dctcp": (":", "x", "..."),
    "mltcp_reno": ("--", "s", "///"),
    "mltcp_cubic": ((0, (3, 1, 1, 1, 1, 1)), "v", "xxx"),
    "mltcp_dctcp": ((0, (1, 1, 1, 1, 1, 1)), "P", "ooo"),
}
"""Line, marker and hatch, by an algorithm's variant."""

_LOOKS: dict[str, tuple[Line, str]] = {
    "best": ((0, (1, 1, 1, 1, 1, 1)), "*"),
    "ocs-vclos": ("-", "o"),
    "vclos": ("--", "s"),
    "source": ("-.", "^"),
    "least-loaded": ((0, (3, 1, 1, 1, 1, 1)), "v"),
    "crux": ((0, (5, 1, 1, 1, 1, 1)), "D"),
    "crux-ecmp": ((0, (5, 1, 1, 1, 1, 1)), "d"),
    "balanced-ecmp": (":", "P"),
    "recmp": ((0, (8, 2, 8, 2, 2, 2)), "X"),
    "ecmp": ("-", "x"),
    "ocs-relaxed": ("--", "<"),
    "reno": ("-", "o"),
    "cubic": ((0, (10, 3)), "<"),
    "dctcp": (":", "x"),
    "bbr": ((0, (8, 2, 2, 2, 2, 2)), "D"),
    "mltcp_reno": ("--", "s"),
    "mltcp_cubic": ((0, (3, 1, 1, 1, 1, 1)), "v"),
    "mltcp_dctcp": ((0, (1, 1, 1, 1, 1, 1)), "P"),
    "mltcp": ("--", "s"),
    "aalo": ((0, (4, 1, 4, 1, 1, 1)), "H"),
    "d-clas": ((0, (5, 1, 1, 1, 1, 1)), "h"),
    "d-clas-job": ((0, (5, 1, 1, 1)), "h"),
    "varys": ((0, (6, 2)), "*"),
    "fifo": ((0, (8, 2, 8, 2, 2, 2)), "X"),
    "fair": (":", "p"),
    "mcs": ("-.", "<"),
    "mcs-steps": ((0, (2, 1)), "<"),
    "ccml": ((0, (1, 2)), ">"),
    "ccml-equal": ((0, (1, 3)), ">"),
}
"""Lines and markers that tell apart, in grey, too, what is drawn together in colours of similar lightness."""

_HATCHES = {
    "cubic": "---",
    "dctcp": "...",
    "bbr": "+++",
    "mltcp": "///",
    "mltcp_cubic": "xxx",
    "mltcp_dctcp": "ooo",
    "aalo": "|||",
    "d-clas": "x-x-",
    "d-clas-job": "|\\|\\",
    "fair": "OO",
    "varys": "***",
    "fifo": "|||",
    "mcs": "---",
    "mcs-steps": "-/-/",
    "ccml": "|||",
    "ccml-equal": "|/|/",
    "best": "***",
    "ocs-vclos": "///",
    "recmp": "xxx",
    "least-loaded": "---",
    "crux": "...",
    "balanced-ecmp": "+++",
    "ocs-relaxed": "\\\\\\",
}
"""Hatches that tell apart, in grey, too, the bars that are drawn together in colours of similar lightness."""

_OTHER_VARIANT: tuple[Line, str, str] = ((0, (5, 4)), "D", "+++")


@dataclass(frozen=True)
class Style:
    """A plot style, in matplotlib's terms."""

    colour: str
    line: Line = "-"
    marker: str = "o"
    hatch: str = ""

    @property
    def ink(self) -> str:
        """What shows on the colour: white, or black on a light colour."""
        return "black" if _luminance(self.colour) > 0.5 else "white"


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour in sRGB, 0 to 1 (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def style(name: str) -> Style:
    """Return the style of a routing, a policy or a congestion control, by its name in the user's files.

    A copy in eBPF (`bpf_reno`) has the style of the kernel's original. Every control that follows schedules
    (`slot_cubic`) has the style of the slot scheduler.
    """
    if name.startswith("slot_"):
        name = "slots"
    name = name.removeprefix("bpf_")
    family, variant = _split(name)
    colour = COLOURS.get(family) or SPARE[zlib.crc32(family.encode()) % len(SPARE)]
    line, marker, hatch = _VARIANTS.get(variant, _OTHER_VARIANT)
    line, marker = _LOOKS.get(name, (line, marker))
    return Style(colour, line, marker, _HATCHES.get(name, hatch))


def _split(name: str) -> tuple[str, str]:
    """Return the algorithm and its variant: `mltcp_reno` is a variant of reno, `parrot-wo-wc` of parrot, and
    `cassini reno` of cassini."""
    name = name.replace(" ", "-")
    if name.startswith("mltcp_"):
        return name.removeprefix("mltcp_"), "mltcp"
    family = max((known for known in COLOURS if f"{name}-".startswith(f"{known}-")), key=len, default=name)
    return family, name[len(family) + 1 :]


def job(place: int) -> str:
    """Return the colour of a job, by its index in the experiment's list."""
    return JOBS[place % len(JOBS)]


def job_style(place: int) -> Style:
    """Return the style of a job: for lines in grey, jobs differ in marker, and for areas in hatch."""
    hatch = _JOB_HATCHES[place % len(_JOB_HATCHES)]
    return Style(job(place), marker="osv^DPX"[place % 7], hatch=hatch)
