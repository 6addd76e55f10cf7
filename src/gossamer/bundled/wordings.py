"""Words and wordings of the bundled text. None of the wordings is one of the tasks' own."""

from __future__ import annotations

WOMEN = frozenset(
    """
Mary Sarah Alice Anna Lily Sue Mia Amy Lucy Emma Jane Kate Rose Emily Laura Grace Eva Ruby Jill Kelly Rachel Lisa Linda
Susan Karen Maria Ruth Sharon Julia Diana Clara Kim Amanda Melissa Rebecca Jessica Jennifer Molly Sara Sophie Zoe Jenny
Sally
""".split()
)

OPENINGS = """
Before {A} and {B} left the {place},
As soon as {A} and {B} reached the {place},
At noon {A} and {B} were standing in the {place}.
Every Sunday {A} and {B} go to the {place}.
This time {A} and {B} were late for the {place}.
Once upon a time {A} and {B} lived near the {place}.
On a cold day, {A} and {B} were looking for the {place}.
The next day {A} and {B} worked together at the {place}.
Because of the rain, {A} and {B} stayed inside the {place}.
It was a warm evening, and {A} and {B} were sitting by the {place}.
The neighbours {A} and {B} were talking about the {place}.
After school {A} and {B} ran to the {place}.
At last {A} and {B} found the way to the {place}.
On Monday {A} and {B} bought a {object} at the {place}.
Long ago {A} and {B} built a small {place}.
Last night {A} and {B} saw a {object} in the {place}.
The children {A} and {B} were hungry when they came to the {place}.
Early in the morning {A} and {B} cleaned the {place}.
Once {A} and {B} had finished their work at the {place},
Since {A} and {B} both liked the {place},
One afternoon {A} and {B} were waiting at the {place}.
In the summer {A} and {B} often met in the {place}.
A friend told {A} and {B} about a new {place}.
Suddenly {A} and {B} heard a noise from the {place}.
Today {A} and {B} were playing near the {place}.
Yesterday {A} and {B} had fun in the {place}.
Three days ago, {A} and {B} walked back to the {place}.
When it was sunny, {A} and {B} had a lot of fun in the {place}.
Two brothers, {A} and {B}, were walking to the {place}.
My two friends, {A} and {B}, found the {place}.
The two sisters {A} and {B} sat in the {place}.
That morning {A} and {B} were happy to see the {place}.
After dinner, {A} and {B} came home from the {place}.
On the way to the {place}, {A} and {B} found a {object}.
While it was raining, {A} and {B} met near the {place}.
There was a {place} in the town. {A} and {B} saw it, and they found a {object}.
There was a new {object} in the {place}, and {A} and {B} wanted it.
There was a {object} near the {place}. {A} and {B} liked it, and
There was some bread in the {place}. {A} and {B} wanted it, and then
So {A} and {B} found the {place}, and
Then one evening {A} and {B} went away from the {place}.
Last summer {A} and {B} were playing behind the {place}, and
It was lunch time, so {A} and {B} sat down at the {place}.
""".strip().splitlines()

TRANSFERS = """
{S} gave a {object} to
{S} handed a {object} to
{S} passed a {object} to
{S} showed a {object} to
{S} offered a {object} to
{S} threw a {object} to
{S} decided to give a {object} to
{S} brought a {object} to
{S} sold a {object} to
{S} wanted to give a {object} to
{S} gave it to
{S} gave the {object} to
Then {S} sent a {object} to
In the end, {S} gave a {object} to
On the way home, {S} gave a {object} to
Later {S} threw a {object} to
""".strip().splitlines()

# The last name before the gift is not the giver's.
TRANSFERS_BETWEEN = """
{S} smiled at {R} and gave a {object} to
{S} called {R} and handed a {object} to
{S} thanked {R} and passed a {object} to
{S} waited for {R} and then gave the {object} to
{S} looked for {R} all day and brought a {object} to
{S}, a friend of {C}, gave a {object} to
{S}, who knew {C} well, showed a {object} to
{S} forgot {C} and sent a {object} to
{S} left the {object} of {C} to
{S} took a {object} from {C} and offered it to
""".strip().splitlines()

PERIODS = """
The {event} lasted from {c}{y} to {c}{z}.
The {event} went on from the year {c}{y} to the year {c}{z}.
The {event} began in {c}{y} and ended in {c}{z}.
The {event} began in the year {c}{y} and ended in the year {c}{z}.
The {event} started in {c}{y} and was over in {c}{z}.
From {c}{y} to {c}{z} there was a {event}.
From the year {c}{y} to the year {c}{z} nobody spoke of the {event}.
A {event} lasted from {c}{y} until {c}{z}.
The {event} lasted from spring {c}{y} to the year {c}{z}.
The long {event} went on from {c}{y} to the year {c}{z}.
After the {event} of {c}{y} nothing was the same until {c}{z}.
Between the year {c}{y} and the year {c}{z} came the {event}.
""".strip().splitlines()

ADJECTIVES = """
small big old new red blue green yellow white black soft loud cold warm hot wet dry bright dark quiet calm long short
tall deep clear fresh heavy light empty full clean sweet strong wide
""".split()
COLOURS = "red blue green yellow white black brown grey pink purple".split()
THINGS = """
sun sky bird tree flower dog cat door wind air car road window clock wall leaf water lake truck house shop street grass
path boat river music square book table corner moon star train bread soup duck pond barn snow hill smell apple room
lamp stone field horse bus wood fire sand wave box paper bag kitchen evening town morning day time noise garden
""".split()
ACTIONS = """
singing sleeping waiting looking working falling standing moving coming swimming lying drying hanging shining raining
playing running walking sitting flying growing burning
""".split()
WHERE = "in near behind under beside above".split()
ANIMALS = "dog cat bird horse duck cow sheep lion tiger snake mouse fox bear wolf frog".split()
NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
CAPITALS = dict(
    pair.split(":")
    for pair in """
France:Paris Spain:Madrid Italy:Rome Germany:Berlin England:London Russia:Moscow Japan:Tokyo China:Beijing Egypt:Cairo
Greece:Athens Norway:Oslo Sweden:Stockholm Poland:Warsaw Austria:Vienna Portugal:Lisbon Ireland:Dublin Turkey:Ankara
Cuba:Havana Peru:Lima Chile:Santiago Kenya:Nairobi India:Delhi Iran:Tehran Iraq:Baghdad Hungary:Budapest
Denmark:Copenhagen
""".split()
)
SOUNDS = {"dog": "barked", "cat": "meowed", "cow": "mooed", "duck": "quacked", "lion": "roared", "bird": "sang"}
VARIABLES = "a b c d i j k n m x y z total item left right".split()
