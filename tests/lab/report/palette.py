# SPDX-License-Identifier: GPL-2.0-or-later
"""One colour for each contender, the same in the whole page.

Okabe and Ito's colours, which stay apart for colour-blind eyes: the agent is
vermilion and nobody else is, the default is grey, static limits are a ramp of
blue from light (large) to dark (small), the others take what is left.  Dashes
tell peers apart once their colours repeat.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from .evaluation import AGENT, DEFAULT, PEER, STATIC, Contender, Evaluation

# (light page, dark page)
AGENT_COLOUR = ("#c8470a", "#ff8a4c")
DEFAULT_COLOUR = ("#7d7d7d", "#a3a3a3")
PEER_COLOURS = (("#00805c", "#2fc79b"), ("#b4589a", "#e08fc4"), ("#a37500", "#e6b83c"),
                ("#6b4fa3", "#b39ddb"), ("#795548", "#c7a495"))
STATIC_ENDS = (((126, 184, 226), (8, 58, 118)), ((198, 226, 250), (62, 128, 205)))
DASHES = ("none", "6 3", "2 3", "8 3 2 3")


def rank(one: Contender) -> Tuple[int, int, str]:
    """The page's order: default, static from large to small, peers, agent."""
    return (DEFAULT, STATIC, PEER, AGENT).index(one.kind), -(one.limit_bytes or 0), one.name


def order(evaluation: Evaluation) -> List[Contender]:
    """All contenders, each once."""
    found: Dict[str, Contender] = {}
    for scenario in evaluation.scenarios:
        for name, contender in scenario.contenders.items():
            found.setdefault(name, contender)
    return sorted(found.values(), key=rank)


class Palette:
    def __init__(self, evaluation: Evaluation) -> None:
        self.contenders = order(evaluation)
        self._index = {one.name: at for at, one in enumerate(self.contenders)}

    def style(self, name: str) -> str:
        """The class that gives an element its contender's colour."""
        return f"k{self._index[name]}"

    def css(self) -> str:
        light, dark, rules = [], [], []
        statics = [one.name for one in self.contenders if one.kind == STATIC]
        peers = [one.name for one in self.contenders if one.kind == PEER]
        for at, one in enumerate(self.contenders):
            dash = "none"
            if one.kind == AGENT:
                colours = AGENT_COLOUR
            elif one.kind == DEFAULT:
                colours = DEFAULT_COLOUR
            elif one.kind == STATIC:
                place = statics.index(one.name) / max(1, len(statics) - 1)
                colours = (_between(0, place), _between(1, place))
            else:
                turn, which = divmod(peers.index(one.name), len(PEER_COLOURS))
                colours, dash = PEER_COLOURS[which], DASHES[turn % len(DASHES)]
            light.append(f"--k{at}:{colours[0]}")
            dark.append(f"--k{at}:{colours[1]}")
            rules.append(f".k{at}{{--c:var(--k{at});--d:{dash}}}")
            # A line is there while its box in the same section is ticked.
            rules.append(f"section:has(.t{at}:not(:checked)) .s.k{at}{{display:none}}")
        return (f":root{{{';'.join(light)}}}\n@media screen and (prefers-color-scheme:dark)"
                f"{{:root{{{';'.join(dark)}}}}}\n" + "\n".join(rules))


def _between(mode: int, place: float) -> str:
    first, last = STATIC_ENDS[mode]
    return "#" + "".join(f"{round(a + (b - a) * place):02x}" for a, b in zip(first, last))
