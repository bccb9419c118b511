"""The subjects of the `held_out` split, for validation and test; `train_themes` never uses them."""

from __future__ import annotations

from dbbench_adapter.generate.themes import Theme
from dbbench_adapter.generate.values import amount, city, code, country, day, key, level, person, pick, staff, title

HELD_OUT_THEMES = (
    Theme("mountain_hikes", "mountain hike", (
        key("hike_id"),
        title("trail_name", "Eagle, Granite, Pine, Misty, Bear, Crystal, Thunder, Cedar",
              "Ridge, Loop, Pass, Summit, Canyon, Falls, Meadow, Gorge"),
        staff("guide"), pick("difficulty", "easy, moderate, hard, expert"),
        amount("length_km", 2, 45, "length in km"), amount("ascent_m", 50, 2400, "ascent in meters"),
        amount("hikers", 1, 30, "hiker count"), day("hike_date"))),
    Theme("zoo_animals", "zoo animal", (
        key("animal_id"),
        title("animal_name", "Big, Shy, Swift, Grey, Spotted, Sleepy, Proud, Curious",
              "Leo, Nala, Bruno, Kira, Otto, Maya, Rex, Tara"),
        pick("species", "lion, zebra, penguin, giraffe, tapir"), staff("keeper"),
        pick("enclosure", "Savanna, Polar, Jungle, Aviary"), amount("weight_kg", 2, 1900, "weight in kg"),
        amount("food_cost", 3, 260, "daily food cost"), level("birth_year", 1995, 2024))),
    Theme("crypto_trades", "crypto trade", (
        key("trade_id"), pick("coin", "Bitcoin, Ether, Solana, Ripple, Cardano"), staff("trader"),
        pick("side", "buy, sell"), amount("units", 1, 500, "number of units"), amount("trade_value", 50, 70000),
        amount("fee", 0, 120), day("trade_date"))),
    Theme("blood_donations", "blood donation", (
        key("donation_no", "donation number"), person("donor"),
        pick("blood_group", "A plus, B plus, O plus, O minus, AB plus"), city("clinic_city"),
        amount("volume_ml", 250, 500, "volume in ml"), level("hemoglobin", 11, 18, "hemoglobin level"),
        amount("wait_minutes", 1, 60, "waiting time in minutes"), day("donated_on", "date of donation"))),
    Theme("quiz_rounds", "quiz round", (
        key("round_id"), pick("team", "Owls, Foxes, Bears, Hawks, Lynxes"),
        pick("subject", "history, sports, movies, nature, art"), staff("quiz_master"),
        amount("correct_answers", 0, 20, "number of correct answers"),
        amount("bonus_points", 0, 50, "number of bonus points"), level("round_number", 1, 10), day("quiz_date"))),
    Theme("lab_experiments", "lab experiment", (
        key("experiment_id"), code("protocol_code", "LX"), pick("discipline", "physics, genetics, optics, botany"),
        staff("researcher"), pick("outcome", "success, failure, unclear"), amount("samples", 1, 200, "sample count"),
        amount("budget", 100, 50000), level("priority", 1, 5), day("run_on", "date of execution"))),
    Theme("boat_charters", "boat charter", (
        key("charter_id"), person("client_name"), pick("boat_type", "yacht, catamaran, dinghy, ferry, trawler"),
        pick("harbor", "Port Azur, Gull Bay, Stone Quay, Old Pier"), amount("crew", 1, 14, "crew size"),
        amount("charter_price", 200, 15000), amount("charter_days", 1, 21, "number of charter days"),
        day("charter_date"))),
    Theme("news_articles", "news article", (
        key("article_id"),
        title("headline", "Mayor, Storm, Market, Team, School, Museum, Bridge, Farmers",
              "Wins, Returns, Reopens, Closes, Grows, Protests, Surprises, Waits"),
        staff("reporter"), pick("desk", "local, world, economy, culture, sports"),
        amount("words", 150, 4000, "word count"), amount("readers", 100, 90000, "reader count"),
        amount("comments", 0, 600, "comment count"), day("published_date", "publication date"))),
    Theme("solar_panels", "solar panel", (
        key("panel_id"), code("serial_code", "SP"), pick("maker", "Helios, Sunline, Brightco, Raywell"),
        city("site_city"), pick("roof_type", "flat, gable, carport, ground"),
        amount("output_w", 150, 600, "output in watts"), amount("install_cost", 200, 3000, "installation cost"),
        level("install_year", 2005, 2024, "year of installation"))),
    Theme("mail_parcels", "mail parcel", (
        key("parcel_id"), person("recipient"), pick("size_class", "small, medium, large, bulky"),
        country("origin_country"), amount("postage", 2, 90), amount("weight_g", 50, 20000, "weight in grams"),
        pick("handling", "standard, fragile, express"), day("posted_date", "posting date"))),
    Theme("dance_classes", "dance class", (
        key("class_id"), pick("style", "salsa, tango, ballet, swing, hip hop"), staff("instructor"),
        pick("studio", "Studio A, Studio B, Studio C"), amount("dancers", 3, 40, "dancer count"),
        amount("fee", 5, 60), level("min_age", 5, 21, "minimum age"), day("class_date")), "dance classes"),
    Theme("mine_shafts", "mine shaft", (
        key("shaft_id"),
        title("shaft_name", "Old, Deep, Lucky, North, Iron, Copper, Long, Eagle",
              "Hope, Anna, Crown, Hollow, Vein, Star, Drift, Pit"),
        pick("mineral", "copper, gold, zinc, salt, iron"), country("country"),
        amount("depth_m", 30, 3000, "depth in meters"), amount("daily_output", 5, 900),
        amount("miners", 4, 240, "miner count"), pick("state", "active, flooded, closed", "operating state"))),
    Theme("survey_responses", "survey response", (
        key("response_id"), pick("age_group", "teen, adult, senior"), country("country"),
        pick("device", "phone, tablet, desktop"), level("score", 1, 10, "satisfaction score"),
        amount("answered_questions", 3, 40, "number of answered questions"),
        amount("seconds_taken", 20, 1200, "number of seconds taken"), day("response_date"))),
    Theme("cargo_flights", "cargo flight", (
        key("cargo_id"), code("call_sign", "CG"), pick("plane_type", "freighter, combi, turboprop, charter"),
        city("loading_city"), country("target_country"), amount("load_tonnes", 1, 120, "load in tonnes"),
        amount("fuel_tonnes", 2, 150, "fuel in tonnes"), amount("crew_hours", 1, 16, "number of crew hours"),
        day("flown_date", "flight date"))),
    Theme("tree_surveys", "surveyed tree", (
        key("tree_id"), pick("tree_species", "oak, birch, linden, plane, spruce"),
        pick("park", "Rose Park, City Grove, East Garden, Canal Walk"), staff("surveyor"),
        level("tree_age", 2, 180, "age of the tree"), amount("trunk_cm", 8, 190, "trunk width in cm"),
        amount("nests", 0, 9, "nest count"), pick("health", "healthy, weak, dead"))),
    Theme("stage_rentals", "stage rental", (
        key("rent_id"), person("renter"), pick("equipment", "speakers, lights, truss, screen, mixer"),
        pick("depot", "Depot 1, Depot 2, Depot 3"), amount("pieces", 1, 60, "number of pieces"),
        amount("deposit", 20, 2000), amount("rent_price", 15, 4000, "rental price"),
        day("rented_date", "start date"))),
    Theme("olympic_results", "olympic result", (
        key("result_id"), person("athlete"), pick("sport", "rowing, judo, fencing, cycling, archery"),
        country("nation"), level("finishing_place", 1, 12), amount("points", 5, 900, "number of points"),
        level("games_year", 2000, 2024, "year of the games"),
        amount("training_hours", 100, 2400, "number of training hours"))),
    Theme("grant_proposals", "grant proposal", (
        key("proposal_id"), staff("principal_investigator"), pick("program", "climate, energy, health, oceans"),
        pick("decision", "funded, rejected, deferred"), amount("requested_sum", 5000, 800000),
        amount("team_size", 1, 25), level("review_score", 1, 10), day("submitted_date", "submission date"))),
)  # fmt: skip
