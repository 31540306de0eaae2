"""What the demo model is taught to hear: sentences of a small voice-command domain.

It knows nothing of voices or audio. Every draw comes from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

# fmt: off
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPOKEN_DIGITS = (*DIGITS, "oh")
TEENS = (
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
    "eighteen", "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
RANKS = (*DIGITS[2:], "ten", "ace", "jack", "queen", "king")
SUITS = ("clubs", "diamonds", "hearts", "spades")
VERBS = ("go", "move", "turn", "drive", "walk", "run", "step")
DIRECTIONS = ("forward", "backward", "back", "left", "right", "up", "down", "around")
UNITS = ("meter", "step", "degree", "second", "minute", "mile", "inch")
SWITCHED = ("light", "lights", "lamp", "fan", "heater", "radio", "camera", "music", "television")
ROOMS = ("kitchen", "bedroom", "bathroom", "office", "garage", "hall")
COMMANDS = (
    "yes", "no", "okay", "stop", "stop now", "start", "start again", "pause", "cancel", "cancel that",
    "repeat", "repeat that", "help", "help me", "next", "next song", "previous", "previous song",
    "play music", "stop the music", "play the radio", "volume up", "volume down", "louder please", "be quiet please",
    "good morning", "good night", "hello", "thank you", "what time is it", "open the door", "close the door",
    "open the window", "close the window", "open the garage", "close the garage", "come here", "come back", "follow me",
    "wait here", "go home", "call home", "go back", "new game", "next card", "stand up", "sit down", "go faster",
    "slow down", "look up", "look down", "wake up",
)
# fmt: on


def digit_string(random: Random) -> str:
    """One to eight digits, zero now and then spoken as "oh"."""
    return " ".join(random.choice(SPOKEN_DIGITS) for _ in range(random.randint(1, 8)))


def number(random: Random) -> str:
    """A number from one to a hundred, half of the time below twenty."""
    if random.random() < 0.5:
        return random.choice((*DIGITS[1:], *TEENS))
    if random.random() < 0.1:
        return "one hundred" if random.random() < 0.5 else "a hundred"
    tens = random.choice(TENS)
    return tens if random.random() < 0.5 else f"{tens} {random.choice(DIGITS[1:])}"


def cards(random: Random) -> str:
    """One to four cards; a rank or a suit may stand alone, as when a speaker corrects himself."""
    return " ".join(_card(random) for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))))


def motion(random: Random) -> str:
    """ "go forward ten meters" and its kin."""
    parts = [random.choice(VERBS), random.choice(DIRECTIONS)]
    if random.random() < 0.75:
        count = number(random)
        unit = random.choice((*UNITS, "meter", "meter"))
        parts += [count, unit if count == "one" else _plural(unit)]
    if random.random() < 0.1:
        parts += ["and", random.choice(("stop", "wait", "turn left", "turn right"))]
    return " ".join(parts)


def command(random: Random) -> str:
    """A household command, fixed or with a slot filled in."""
    draw = random.random()
    if draw < 0.6:
        return random.choice(COMMANDS)
    if draw < 0.8:
        room = f"{random.choice(ROOMS)} " if random.random() < 0.4 else ""
        state = random.choice(("on", "off"))
        return f"turn {state} the {room}{random.choice(SWITCHED)}"
    if draw < 0.9:
        return f"set a timer for {number(random)} {random.choice(('minutes', 'seconds', 'hours'))}"
    return f"set the {random.choice(('volume', 'temperature', 'alarm'))} to {number(random)}"


def fragment(random: Random) -> str:
    """One to five words of the domain in any order, so that no word is heard by its neighbours alone."""
    return " ".join(random.choice(FRAGMENT_WORDS) for _ in range(random.randint(1, 5)))


Kind = tuple[Callable[[Random], str], float]
"""What makes a sentence of a kind, and the kind's share."""

KINDS: Sequence[Kind] = (
    (digit_string, 0.2),
    (cards, 0.22),
    (motion, 0.2),
    (command, 0.2),
    (fragment, 0.18),
)
DOMAIN = KINDS[:-1]
"""What the model is for: all but fragments, which only teach it to listen."""


def sentence(random: Random, among: Sequence[Kind] = KINDS) -> str:
    """Return one sentence: lower-case words, single spaces; of kinds in proportion to their shares."""
    kinds, shares = zip(*among, strict=True)
    make: Callable[[Random], str] = random.choices(kinds, shares)[0]
    return make(random)


def _card(random: Random) -> str:
    draw = random.random()
    if draw < 0.8:
        return f"{random.choice(RANKS)} of {random.choice(SUITS)}"
    return random.choice(RANKS) if draw < 0.95 else random.choice(SUITS)


def _plural(unit: str) -> str:
    return "inches" if unit == "inch" else f"{unit}s"


def _words() -> tuple[str, ...]:
    every = " ".join(
        (
            *(
                *SPOKEN_DIGITS,
                *TEENS,
                *TENS,
                *RANKS,
                *SUITS,
                *VERBS,
                *DIRECTIONS,
                *SWITCHED,
                *ROOMS,
            ),
            *COMMANDS,
            *UNITS,
            *(_plural(unit) for unit in UNITS),
            "a and hundred of for to timer minutes hours on off set temperature alarm",
        )
    )
    return tuple(sorted(set(every.split())))


WORDS = _words()
"""Every word of the domain."""

FRAGMENT_WORDS = tuple(word for word in WORDS if word not in ("to", "for"))
"""Out of context nobody can tell "to" from "two", or "for" from "four"."""
