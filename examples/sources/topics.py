"""Conversations about nine subjects, our own invention: the source of the recordings with marked changes of topic.

Each subject has turns of a question and an answer. The last four of a subject are about the same thing in other words. `recordings`
puts subjects one after another, with digressions inside that return to the subject: those are no change of topic.
"""

from __future__ import annotations

from random import Random

Turn = tuple[str, str]

BREAD = [
    (
        "My sourdough loaf came out dense. What did I do wrong?",
        "A dense loaf is usually underproofed. Let the dough rise until it has grown by half and jiggles, and make sure the starter was active before you mixed it.",
    ),
    (
        "How do I know that the starter is active enough?",
        "Drop a spoonful into water: if it floats, it is ready. A healthy sourdough starter doubles within six hours after feeding with flour and water.",
    ),
    (
        "What hydration should I use with whole wheat flour?",
        "Whole wheat flour drinks more water than white, so start at 75 percent hydration. The dough should feel tacky but still hold its shape.",
    ),
    (
        "Do I have to knead it, or is folding enough?",
        "Folding is enough for sourdough. Four sets of stretch and fold, half an hour apart, build the gluten without kneading the dough.",
    ),
    (
        "How long can the dough stay in the fridge?",
        "Shaped dough proofs slowly in the fridge for up to two days. The bread gets more sour, and the crust browns better.",
    ),
    (
        "Why does my crust stay pale?",
        "The oven was not hot enough or there was too little steam. Preheat the baking stone for an hour and bake the loaf under a lid at first.",
    ),
    (
        "Should I score the loaf before baking?",
        "Yes, one deep cut at a shallow angle lets the loaf rise in the oven. Use a razor blade and flour the dough first.",
    ),
    (
        "When may I cut the bread?",
        "Wait at least two hours. The crumb of a warm sourdough loaf is still setting and turns gummy under the knife.",
    ),
    (
        "The inside is full of big caverns just below the top. Any idea?",
        "Those tunnels come from shaping: press the gas out evenly and roll the dough tighter, and give the bulk rise more time.",
    ),
    (
        "It tastes rather flat, almost like paste.",
        "Then there is too little salt. Two grams for every hundred grams of flour is the usual measure for a loaf.",
    ),
    (
        "Could I swap some of it for rye?",
        "A fifth of rye flour works well: it ferments fast and gives flavour, but the dough gets sticky, so wet your hands.",
    ),
    (
        "What is the best way to keep it fresh through the week?",
        "Store the loaf cut side down in a cloth or a bread box, and freeze slices that you will not eat in three days.",
    ),
]

BICYCLE = [
    (
        "The chain of my bike slips when I pedal hard. What can it be?",
        "A slipping chain is worn, or the cassette is. Measure the chain with a gauge: above 0.75 percent, replace it.",
    ),
    (
        "How do I take the old chain off?",
        "Find the quick link and open it with chain pliers. Without one, push a rivet out with a chain tool.",
    ),
    (
        "Does the cassette have to be changed as well?",
        "If a new chain still skips on the small sprockets, yes. A cassette lasts for two or three chains.",
    ),
    (
        "Which tool loosens the cassette?",
        "You need a lockring tool and a chain whip to hold the sprockets while you turn the wrench on the rear wheel.",
    ),
    (
        "After that the gears do not shift cleanly.",
        "Adjust the cable tension of the rear derailleur with the barrel adjuster, a quarter turn at a time, until the chain climbs cleanly.",
    ),
    (
        "The derailleur touches the spokes in the lowest gear.",
        "Turn the low limit screw in until the derailleur cage stays clear of the spokes, and check that the hanger is not bent.",
    ),
    (
        "How often should I oil the chain?",
        "Clean and oil the bike chain every 200 kilometres, and after every wet ride. Wipe off what is too much.",
    ),
    (
        "My disc brakes squeal too.",
        "Brake pads that got oil on them squeal. Clean the rotor with alcohol, and sand the pads or replace them.",
    ),
    (
        "There is a click every time my right foot comes down.",
        "That may be the pedal or the crank. Grease the pedal threads first and tighten the crank bolts with a torque wrench.",
    ),
    (
        "It wobbles when I let go of the handlebar.",
        "Check the headset for play and the front wheel for true. A loose bearing makes the bike shake.",
    ),
    (
        "Which pressure would you ride on gravel?",
        "With tyres of 40 millimetres about 2.5 bar, less if they are tubeless. Lower pressure grips better on gravel.",
    ),
    (
        "Can I put mudguards on it?",
        "If the frame has eyelets and room above the tyre, yes. Otherwise take guards that clip to the seatpost and fork.",
    ),
]

TAX = [
    (
        "I work from home three days a week. What can I deduct in my tax return?",
        "You can deduct a flat amount for every day in the home office, and equipment such as a desk for your work.",
    ),
    (
        "Do I need receipts for the desk?",
        "Keep the invoice: the tax office may ask for it. Equipment up to the limit for small assets is deducted at once.",
    ),
    (
        "How is an expensive laptop treated?",
        "A laptop for work is written off over its useful life, or at once where the rules allow. Deduct only the share of professional use.",
    ),
    (
        "And the internet bill?",
        "Twenty percent of the bill up to a small monthly amount is accepted as an expense without further proof.",
    ),
    (
        "By when must I file the return?",
        "The deadline is the end of July of the following year; with a tax adviser it is later. A late return costs a penalty.",
    ),
    (
        "Can I still file for two years ago?",
        "A voluntary return can be filed up to four years back. If you were obliged to file, the tax office adds interest.",
    ),
    (
        "My employer paid my train pass. Does that matter?",
        "A pass that the employer pays reduces the commuting allowance that you can deduct from your income.",
    ),
    (
        "Which form is for donations?",
        "Donations go into the form for special expenses. Up to a small sum a bank statement is enough as a receipt.",
    ),
    (
        "They want money back from me although I always paid monthly. Why?",
        "Perhaps you had side income without withholding, or a wrong bracket after marriage. The assessment lists the reason.",
    ),
    (
        "What if I think that the letter is wrong?",
        "File an objection within a month of the assessment, and say which item is wrong. Payment is due meanwhile unless it is suspended.",
    ),
    (
        "I sold some shares at a loss.",
        "Losses from shares are set off against gains from shares; what is left is carried into the next tax year by your bank.",
    ),
    (
        "Would a professional be worth the fee?",
        "An adviser pays off with rental income, a business or foreign income. For wages alone, software for the return is enough.",
    ),
]

SERVICE = [
    (
        "Our Python service leaks memory. How do I find out where?",
        "Take two tracemalloc snapshots some minutes apart and compare them: the lines whose allocations grow are the suspects in your Python code.",
    ),
    (
        "The snapshot points at a cache decorator.",
        "functools.cache without a maxsize keeps every argument for ever. Use lru_cache with a limit, or a cache with an expiry.",
    ),
    (
        "Could it also be the asyncio tasks?",
        "Yes: tasks that never end keep their frames. Print len(asyncio.all_tasks()) in the service and watch whether it grows.",
    ),
    (
        "How do I cancel tasks when a client disconnects?",
        "Use a TaskGroup or keep the handle, and cancel it in the finally block. The coroutine gets CancelledError at its next await.",
    ),
    (
        "The worker also logs a stack trace on shutdown.",
        "A pending task was destroyed. Gather the tasks before the event loop closes, with return_exceptions set.",
    ),
    (
        "Which profiler shows CPU time in production?",
        "py-spy attaches to the running Python process without a restart and samples the stack of every thread.",
    ),
    (
        "It says most time is spent in json.loads.",
        "Decode with orjson or msgspec: both parse JSON several times as fast, and msgspec checks types on the way.",
    ),
    (
        "How do I test that under load?",
        "Replay recorded requests with a load generator and watch latency percentiles and resident memory of the service.",
    ),
    (
        "Pods get killed around three in the night.",
        "That is the out of memory killer. Set the container limit above the peak, and log resident size so that you see the slope.",
    ),
    (
        "Restarting every hour helps, but it is ugly.",
        "It hides the leak. Keep the restart as a guard for now, and bisect the releases until the heap stays flat.",
    ),
    (
        "Someone suggested weak references.",
        "A WeakValueDictionary drops entries that nobody uses, which suits an identity map; plain strings and ints cannot be weakly referenced.",
    ),
    (
        "Is there a way to see what holds an object?",
        "objgraph shows back references: draw the chain from the leaked object to the module that keeps it alive.",
    ),
]

GARDEN = [
    (
        "My tomato plants have yellow leaves at the bottom. Is that a disease?",
        "Yellow lower leaves on tomato plants often mean a lack of nitrogen or too much water. Feed them and let the soil dry between waterings.",
    ),
    (
        "How often should I water them in summer?",
        "Water tomatoes deeply two or three times a week at the root, in the morning. Irregular watering splits the fruit.",
    ),
    (
        "Brown spots appear on the leaves now.",
        "Brown spots with rings are early blight. Remove the infected leaves, keep the foliage dry and mulch the soil.",
    ),
    (
        "Do I need to pinch out the side shoots?",
        "On cordon tomatoes pinch out the shoots in the leaf axils every week; bush tomatoes are left to grow.",
    ),
    (
        "The flowers drop without setting fruit.",
        "Heat above 32 degrees or too little pollination makes blossoms drop. Shake the plants gently at noon.",
    ),
    (
        "Which plants grow well beside them?",
        "Basil, marigold and onions are good neighbours for tomatoes. Keep potatoes away, they share diseases.",
    ),
    (
        "Can I grow them in pots on a balcony?",
        "Yes, in pots of at least twenty litres with a stake. Pots dry out fast, so water the plants daily in summer.",
    ),
    (
        "When do I sow the seeds?",
        "Sow tomato seeds indoors eight weeks before the last frost, and plant the seedlings out when nights stay above ten degrees.",
    ),
    (
        "The ends of the fruit turn black and leathery.",
        "That is blossom end rot: the plant lacks calcium because it dried out in between. Water evenly and mulch.",
    ),
    (
        "Little green insects sit under the foliage.",
        "Those are aphids. Rinse them off with water, or spray diluted soap in the evening; ladybirds do the rest.",
    ),
    (
        "It is October and many are still green.",
        "Pick them before the frost and let them ripen in a box with an apple, in a warm room.",
    ),
    (
        "May I put the dead stalks on the compost?",
        "Healthy stalks yes. Those with blight belong into the household waste, or the spores winter in the compost.",
    ),
]

RUNNING = [
    (
        "I want to run a half marathon in twelve weeks. How should I train?",
        "Run three or four times a week: one long run, one session of intervals and easy runs, and raise the weekly distance by ten percent.",
    ),
    (
        "How long should the longest run be?",
        "Build the long run up to 18 kilometres two weeks before the race. You need not run the whole distance in training.",
    ),
    (
        "At which pace do I do the intervals?",
        "Run intervals at your 5 kilometre pace, six times 800 metres with two minutes of jogging between them.",
    ),
    (
        "My shins hurt after running.",
        "Shin splints come from too much too soon. Run on soft ground, shorten the stride, and rest for a week if the pain stays.",
    ),
    (
        "Should I run on an empty stomach?",
        "Easy runs yes if you like, but eat carbohydrates before long runs, and take a gel every 40 minutes beyond an hour.",
    ),
    (
        "Which shoes do you recommend?",
        "Take running shoes that fit with a thumb's width in front, and change between two pairs; replace them after 700 kilometres.",
    ),
    (
        "How do I taper before the race?",
        "In the last two weeks cut the distance by a third and then by half, and keep a few short fast runs.",
    ),
    (
        "What pace should I start the race with?",
        "Start the half marathon ten seconds slower than your goal pace for three kilometres; most runners begin too fast.",
    ),
    (
        "My heart rate goes through the roof on hills.",
        "Walk or slow down uphill and run by effort rather than pace; base endurance brings the pulse down over weeks.",
    ),
    (
        "I always get a stitch after a quarter of an hour.",
        "Eat nothing two hours before, breathe out when the left foot lands, and press on the spot while you jog.",
    ),
    (
        "Is strength work any use for that?",
        "Twice a week squats, calf raises and planks protect the knees and make your stride more economical.",
    ),
    (
        "What do I do the day after the event?",
        "Walk or cycle easily, drink and sleep well, and do not run hard for ten days after a race.",
    ),
]

LISBON = [
    (
        "We fly to Lisbon in May for five days. Which quarter should we stay in?",
        "Stay in Baixa or Chiado if you want to walk everywhere in Lisbon; Alfama is prettier but steep and louder at night.",
    ),
    (
        "How do we get there from the airport?",
        "The metro takes 25 minutes from the airport to the centre of Lisbon; a taxi costs about fifteen euros.",
    ),
    (
        "Is the tram 28 worth it?",
        "Ride tram 28 early in the morning, before the queues. Keep your wallet in a front pocket.",
    ),
    (
        "Which museum would you choose for one afternoon?",
        "The tile museum in an old convent, or the Gulbenkian collection if you prefer paintings. Both are closed on one weekday.",
    ),
    (
        "Can we visit Sintra in a day?",
        "Yes, the train to Sintra takes 40 minutes. Book the Pena palace ahead and start before nine.",
    ),
    (
        "Where do locals eat grilled fish?",
        "Try the small restaurants in Graça and Campo de Ourique. Grilled sardines are in season from June on.",
    ),
    (
        "Do we need a rental car?",
        "Not in Lisbon: parking is scarce, and trains reach Cascais and Sintra. Rent a car only for the coast further south.",
    ),
    (
        "What is the weather like at that time?",
        "May in Lisbon is mild, about 22 degrees by day, with a fresh wind in the evening. Bring a jacket.",
    ),
    (
        "My father does not walk well. Are there lifts?",
        "Two public elevators and a funicular save the worst slopes, and taxis are cheap for short hops in the old town.",
    ),
    (
        "Something to do when it rains?",
        "The oceanarium and the covered market are good for half a day, and so is a long lunch with custard tarts.",
    ),
    (
        "Any beach that we can reach without a vehicle?",
        "Take the suburban line to Carcavelos: the sand is ten minutes from the station, and there are surf schools.",
    ),
    (
        "How much should we leave as a tip?",
        "Round up or leave five to ten percent in restaurants. The bread and olives on the table are charged.",
    ),
]

PIANO = [
    (
        "I started the piano at forty. How should I practise?",
        "Practise the piano for twenty minutes each day rather than two hours on Sunday, hands separately first and slowly.",
    ),
    (
        "My left hand cannot keep up.",
        "Practise the left hand alone with a metronome, in small groups of notes, and play scales with both hands.",
    ),
    (
        "Which pieces suit the first year?",
        "Try the easy minuets of the Anna Magdalena notebook, Bartók's pieces for children and simple blues patterns on the piano.",
    ),
    (
        "Do I have to learn to read sheet music?",
        "Yes, reading notes opens the repertoire. Read one easy line at sight each day without stopping.",
    ),
    (
        "How do I use the pedal?",
        "Change the pedal just after the new chord sounds, listen for a clean harmony, and practise without it first.",
    ),
    (
        "My wrists get tired quickly.",
        "Sit higher and let the weight of the arm play. Wrists should be level and loose; stop when it hurts.",
    ),
    (
        "Are scales really necessary?",
        "Scales teach fingering and keys. Two scales a day, even and quiet, are enough for a beginner at the piano.",
    ),
    (
        "Is a digital instrument good enough?",
        "A digital piano with 88 weighted keys is enough for years. Play an acoustic one from time to time for the touch.",
    ),
    (
        "I get stuck at the same bar every time.",
        "Isolate that bar with the one before and after, play it five times correctly at half tempo, then join it.",
    ),
    (
        "How do people memorise whole works?",
        "They learn the harmony and the form, start from several places, and play in the mind away from the keys.",
    ),
    (
        "Playing for friends makes my fingers shake.",
        "Perform short pieces often, record yourself, and begin with one that you could play asleep.",
    ),
    (
        "What about improvising a little?",
        "Take four chords in the left hand and a pentatonic melody in the right; repeat a motif and vary its rhythm.",
    ),
]

ASTRONOMY = [
    (
        "I bought a small telescope. What should I look at first?",
        "Point the telescope at the moon along the shadow line, then at Jupiter and its four moons and at Saturn's rings.",
    ),
    (
        "Which eyepiece do I begin with?",
        "Begin with the eyepiece of the longest focal length: a wide field makes objects easier to find.",
    ),
    (
        "The image is upside down. Is it broken?",
        "No, an astronomical telescope turns the image. In space there is no up; a prism corrects it for views on land.",
    ),
    (
        "How do I find the Andromeda galaxy?",
        "From the square of Pegasus go two stars along Andromeda and two up: the galaxy is a faint oval glow.",
    ),
    (
        "Can I see nebulae from a city?",
        "Bright nebulae such as Orion's are visible from a city; a filter against light pollution helps with some.",
    ),
    (
        "What does the aperture decide?",
        "Aperture decides how much light the telescope gathers and how fine the detail is. Magnification beyond twice the aperture in millimetres is useless.",
    ),
    (
        "How do I align the mount?",
        "Point the polar axis of the mount at the pole star, then set the latitude. Fine alignment matters only for photographs.",
    ),
    (
        "When is the next meteor shower?",
        "The Perseids in August and the Geminids in December are the best meteor showers; look after midnight, without a telescope.",
    ),
    (
        "Everything shimmers as if under water tonight.",
        "That is bad seeing: turbulent air above warm roofs. Let the tube cool for an hour and observe objects high up.",
    ),
    (
        "My fingers freeze and the glass fogs up.",
        "Use a dew shield and a heater band around the lens, and wear thin gloves below thick ones.",
    ),
    (
        "Could I take snapshots with my phone?",
        "Hold the phone to the eyepiece with an adapter; the moon works at once, planets by stacking frames of a video.",
    ),
    (
        "Is there a chart that I can use outdoors in the dark?",
        "Take a planisphere and a red lamp, or an app in night mode, so that your eyes stay adapted to darkness.",
    ),
]

SUBJECTS = {
    "bread": BREAD,
    "bicycle": BICYCLE,
    "tax": TAX,
    "service": SERVICE,
    "garden": GARDEN,
    "running": RUNNING,
    "lisbon": LISBON,
    "piano": PIANO,
    "astronomy": ASTRONOMY,
}

DIGRESSIONS = [
    [("Before I forget: what is 17 percent of 2,340?", "That is 397.80.")],
    [("Sorry, quick one: how do you spell conscientious?", "It is spelled c-o-n-s-c-i-e-n-t-i-o-u-s.")],
    [("My cat just jumped on the keyboard, one moment.", "No problem, take your time.")],
    [("What time is it in Tokyo when it is noon here?", "In winter it is eight hours later there, so eight in the evening.")],
    [
        ("By the way, do you know a good film for tonight?", "If you like quiet comedies, try one by Aki Kaurismäki."),
        ("We have seen that one. Something with more action?", "Then a heist film: they are fast and funny, and nobody falls asleep."),
    ],
    [
        ("My daughter asks why the sea is salty.", "Rivers wash minerals out of rocks and carry them into the sea, where the water evaporates and the salt stays."),
        ("And why are lakes not?", "Most lakes have an outlet, so the salt is carried on. Lakes without one, such as the Dead Sea, are salty."),
    ],
]  # fmt: skip


def recordings(count: int, *, subjects: int = 4) -> list[tuple[list[Turn], list[int]]]:
    """Return recordings, each with the turns at which the topic changes. The same call returns the same recordings."""
    return [_recording(Random(seed), subjects) for seed in range(count)]


def _recording(chance: Random, subjects: int) -> tuple[list[Turn], list[int]]:
    turns, marks = list[Turn](), list[int]()
    for name in chance.sample(sorted(SUBJECTS), subjects):
        first = chance.randint(0, 2)
        piece = SUBJECTS[name][first : first + chance.randint(9, len(SUBJECTS[name]) - first)]
        if chance.random() < 0.8:
            at = chance.randint(2, len(piece) - 2)
            piece = [*piece[:at], *chance.choice(DIGRESSIONS), *piece[at:]]
        marks += [len(turns)] if turns else []
        turns += piece
    return turns, marks
