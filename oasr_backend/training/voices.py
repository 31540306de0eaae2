"""Who speaks: the synthetic voices, and which of them are kept for the test alone.

It knows nothing of texts, and does not synthesize.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# fmt: off
ACCENTS = ("en-us", "en-gb", "en-us-nyc", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbcwmd", "en-029")
VARIANTS = (
    "m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4", "Andy", "Alex", "Andrea",
    "Annie", "Denis", "Gene", "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "adam", "anika",
    "antonio", "benjamin", "boris", "david", "ed", "edward", "grandpa", "john", "klatt", "klatt2",
    "klatt3", "linda", "max", "miguel", "norbert", "paul", "pedro", "quincy", "rob", "robert",
    "sandro", "shelby", "steph", "travis", "zac",
)
TEST_ACCENT = "en-gb-x-gbclan"
TEST_VARIANTS = ("m8", "f5", "Alicia", "Mike", "klatt4", "belinda", "iven", "victor")
# fmt: on


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker of one synthesizer: `espeak`, `flite` or `hibari`."""

    engine: str
    name: str

    def __str__(self) -> str:
        return f"{self.engine}:{self.name}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a sentence is spoken.

    `pace` multiplies the voice's own speed, `pitch` its fundamental, `tract` its formants (below 1:
    a longer vocal tract), `intonation` the melody's range. A synthesizer that cannot change one of
    them ignores it. `pauses` is the chance of a pause after a word.
    """

    pace: float = 1.0
    pitch: float = 1.0
    tract: float = 1.0
    intonation: float = 1.0
    pauses: float = 0.0


def training_voice(random: Random) -> Voice:
    """Draw a voice to train on: 35 % espeak-ng, 30 % flite, 35 % hibari.

    The natural voices (flite's rms and awb, hibari) are few but sound most like people.
    """
    engine = random.choices(("espeak", "flite", "hibari"), (0.35, 0.30, 0.35))[0]
    if engine == "espeak":
        return Voice("espeak", f"{random.choice(ACCENTS)}+{random.choice(VARIANTS)}")
    if engine == "flite":
        return Voice("flite", random.choices(("rms", "awb", "kal16"), (0.45, 0.35, 0.2))[0])
    return Voice("hibari", "heart")


def held_out_voice(random: Random) -> Voice:
    """Draw a voice that training never hears: an accent, eight variants and a flite voice."""
    draw = random.random()
    if draw < 0.5:
        return Voice("flite", "slt")
    accent = TEST_ACCENT if draw < 0.75 else random.choice(ACCENTS)
    return Voice("espeak", f"{accent}+{random.choice(TEST_VARIANTS)}")


def delivery(voice: Voice, random: Random) -> Delivery:
    """Draw how `voice` speaks a sentence."""
    pauses = random.choice((0.0, 0.0, 0.15, 0.5))
    pace = random.uniform(0.8, 1.1)
    if voice.engine != "hibari":
        return Delivery(pace, random.uniform(0.75, 1.3), 1.0, random.uniform(0.6, 1.4), pauses)
    # It speaks faster than the others by itself. The one natural voice is a woman's: half of the time she becomes a man
    # (lower by 5 to 14 semitones, formants lower by 6 to 20 %).
    if random.random() < 0.55:
        pitch, tract = random.uniform(0.45, 0.75), random.uniform(0.8, 0.94)
    else:
        pitch, tract = random.uniform(0.8, 1.2), random.uniform(0.92, 1.12)
    return Delivery(0.85 * pace, pitch, tract, random.uniform(0.5, 1.4), pauses)
