"""Words the tasks are made of: common enough to be single tokens in most vocabularies, simple enough for a model of
children's stories."""

NAMES = """
Mary John Tom James Dan Sarah Alice Anna Lily Ben Tim Sue Mia Max Sam Amy Lucy Jack Emma Jane Bob Paul Mark Kate Rose
Joe Peter David Michael Robert Kevin George Emily Laura Grace Henry Alex Adam Luke Leo Eva Ruby Jill Jim Bill Fred
Frank Nick Steve Chris Brian Eric Ryan Kelly Rachel Lisa Linda Susan Karen Simon Martin Daniel Thomas William Andrew
Jason Jeff Gary Larry Jerry Carl Roger Bruce Ralph Oliver Maria Ruth Sharon Julia Diana Clara Ray Lee Sean Kyle Barry
Kim Dave Mike Matt Tony Andy Josh Jake Amanda Melissa Rebecca Jessica Jennifer Patrick Ted Molly Sara Sophie Zoe Billy
Johnny Tommy Jenny Sally Bobby
""".split()

PLACES = """
store park school garden beach house farm shop library market hospital office station restaurant museum church lake
river forest kitchen zoo pool castle bridge hotel
""".split()

OBJECTS = """
drink book ball gift cake toy box card hat flower cup bag key letter ring doll kite bike car coin picture map bottle
basket computer
""".split()

# Neutral sentences without people, to put before a question.
DISTRACTORS = """
The sun was shining and the sky was very blue.
A small bird was singing in the big tree.
It had been raining for a long time that morning.
The flowers in the garden were red and yellow.
There was a little dog sleeping near the door.
The wind was soft and the air smelled of fresh bread.
Many cars were waiting at the side of the road.
A white cat was looking out of the window.
The old clock on the wall was still working.
Some leaves were falling from the trees to the ground.
The water in the lake was cold and clear.
A big truck was standing in front of the house.
The shops were open and the street was full of people.
It was the first warm day of the year.
The grass was wet and there was mud on the path.
A red boat was moving slowly on the river.
The music from the square could be heard far away.
There were many books on the table in the corner.
The moon was bright and the stars were out.
A train was coming from the north with a loud noise.
The bread was hot and the soup was almost ready.
Two ducks were swimming in the pond behind the barn.
The snow on the hills was white and very deep.
There was a smell of apples in the warm room.
The lights in the street were yellow and soft.
A large stone was lying in the middle of the field.
The birds were quiet and the wind had stopped.
The door was made of wood and painted green.
Some horses were standing under the tall trees.
The bus was late and the people were cold.
A pile of wood was drying next to the fire.
The sand was warm and the waves were small.
There was nothing in the box but some old paper.
The road was long and went over many hills.
A black bag was hanging behind the kitchen door.
The evening was calm and the town was quiet.
""".strip().splitlines()

EVENTS = """
war siege reign trial plague voyage marriage drought famine truce dispute strike project program study friendship
rivalry tour expedition campaign investigation occupation rebellion revolt crisis recession conflict partnership
alliance treaty agreement contract construction restoration exhibition festival ceremony journey pilgrimage exile
imprisonment captivity epidemic outbreak flood fire storm decline expansion growth rise fall rule dynasty empire
monarchy republic revolution reform movement protest boycott blockade embargo negotiation debate feud romance affair
engagement courtship apprenticeship career employment service mission crusade invasion raid patrol search hunt quest
experiment test survey excavation renovation tradition custom practice policy ban monopoly trade partition union
""".split()

CENTURIES = [str(century) for century in range(11, 20)]

FUNCTIONS = """
load save open close read write start stop send move find make build run test check update create delete print parse
sort merge split copy draw count join match filter search fetch store apply reset handle process convert
""".split()

ARGUMENTS = """
size name file path data value key index user code list line text page date time type mode level state count limit
color width height depth table field group node tree root host port query result message image model layer input
output source target title address number option version format language label order first last start end
""".split()

DESCRIPTIONS = """
oil column piece unit dark crime population water sound light paper school city music river family garden market
student history nature power force order voice field stone metal animal season winter summer window kitchen chair
bottle street bridge ocean mountain forest island village church doctor teacher father mother friend
""".split()

# Single words for copying from context.
COPYABLE = """
apple river stone cloud chair bread horse glass paper sugar metal plant money light water music house table train
clock sheep onion tiger snake eagle honey salt rope wheel brick
""".split()
