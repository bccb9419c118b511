"""The subjects of the `train` split; `held_out_themes` shares no table and no name of a row with them."""

from __future__ import annotations

from dbbench_adapter.generate.themes import Theme
from dbbench_adapter.generate.values import amount, city, code, country, day, key, level, person, pick, staff, title

TRAIN_THEMES = (
    Theme("delivery_routes", "delivery route", (
        key("route_id"), staff("driver_name"), pick("vehicle_type", "van, truck, bicycle, motorbike, car"),
        city("start_city"), amount("distance_km", 5, 400, "distance in km"),
        amount("parcels", 3, 180, "parcel count"), day("delivery_date"),
        pick("status", "delivered, delayed, cancelled, planned"))),
    Theme("library_loans", "library loan", (
        key("loan_id"),
        title("book_title", "Silent, Golden, Lost, Broken, Hidden, Winter, Last, Burning",
              "River, Garden, Letter, Voyage, Mirror, Kingdom, Shadow, Harbor"),
        staff("member_name"), pick("genre", "mystery, history, science, poetry, travel, fantasy"),
        amount("days_kept", 1, 60, "number of days kept"), amount("fine", 0, 40), day("loan_date"),
        pick("branch", "Central, Riverside, Hilltop, Old Town"))),
    Theme("hotel_bookings", "hotel booking", (
        key("booking_id"), person("guest_name"), pick("room_type", "single, double, suite, family, dormitory"),
        city("hotel_city"), amount("nights", 1, 21, "number of nights"), amount("total_price", 60, 4000),
        day("check_in", "check-in date"), level("guest_rating", 1, 10))),
    Theme("flight_schedule", "flight", (
        key("flight_id"), code("flight_code", "FL"),
        pick("airline", "Skylark, Northwind, Aerolux, Bluejet, Condor Air"), city("origin", "city of origin"),
        city("destination"), amount("passengers", 20, 380, "passenger count"),
        amount("delay_minutes", 0, 180, "delay in minutes"), day("departure_date"))),
    Theme("employee_records", "employee", (
        key("employee_id"), person("employee_name"),
        pick("department", "Sales, Finance, Research, Legal, Support, HR"),
        pick("job_level", "junior, senior, lead, manager"), amount("salary", 2000, 12000), level("age", 20, 64),
        city("office_city"), day("hire_date"))),
    Theme("product_stock", "product", (
        key("product_id"),
        title("product_name", "Steel, Oak, Glass, Copper, Linen, Bamboo, Marble, Cotton",
              "Lamp, Chair, Shelf, Desk, Bowl, Mirror, Clock, Basket"),
        pick("category", "kitchen, office, garden, bedroom, outdoor"), pick("warehouse", "North, South, East, West"),
        amount("quantity", 0, 500), level("unit_price", 2, 350), level("reorder_level", 5, 80),
        day("restock_date"))),
    Theme("patient_visits", "patient visit", (
        key("visit_id"), person("patient_name"), staff("doctor_name"),
        pick("ward", "Cardiology, Surgery, Pediatrics, Neurology, Oncology"), amount("cost", 40, 3000),
        amount("duration_minutes", 5, 150, "duration in minutes"), level("patient_age", 1, 95), day("visit_date"))),
    Theme("course_enrollments", "course enrollment", (
        key("enrollment_id"), person("student_name"),
        pick("course", "Algebra, Biology, Chemistry, Drawing, Economics"),
        pick("semester", "spring, summer, autumn, winter"), level("grade", 40, 100),
        amount("credits", 1, 12, "credit count"), amount("absences", 0, 15, "number of absences"), staff("tutor"))),
    Theme("concert_tickets", "concert ticket", (
        key("ticket_id"), person("buyer_name"), pick("section", "balcony, floor, gallery, box"),
        pick("band", "Night Owls, Red Comet, Velvet Road, Paper Moon, Iron Lake"), amount("price", 15, 300),
        level("seat_row", 1, 40), day("concert_date"), city("venue_city"))),
    Theme("farm_harvests", "harvest", (
        key("harvest_id"), pick("crop", "wheat, barley, maize, potato, carrot, soy"),
        pick("field_name", "Upper, Lower, Mill, Creek"), staff("farmer"), amount("tonnes", 1, 90, "yield in tonnes"),
        amount("workers", 1, 25, "worker count"), level("season_year", 2015, 2024), day("harvest_date"))),
    Theme("museum_exhibits", "exhibit", (
        key("exhibit_id"),
        title("exhibit_name", "Bronze, Silver, Painted, Carved, Royal, Ancient, Stone, Ivory",
              "Mask, Vase, Crown, Statue, Shield, Throne, Amulet, Urn"),
        pick("hall", "Hall A, Hall B, Hall C, Hall D"), country("country_of_origin"),
        amount("insured_value", 500, 90000), amount("visitors", 10, 4000, "visitor count"),
        level("year_acquired", 1920, 2023), staff("curator"))),
    Theme("gym_sessions", "gym session", (
        key("session_id"), staff("trainer"), pick("activity", "yoga, rowing, boxing, spinning, pilates"),
        person("member_name"), amount("calories", 80, 900, "number of calories burned"),
        amount("minutes", 15, 120, "length in minutes"), level("heart_rate", 85, 185), day("session_date"))),
    Theme("insurance_claims", "insurance claim", (
        key("claim_id"), code("policy_code", "PC"), pick("claim_type", "fire, theft, flood, accident, storm"),
        staff("adjuster"), pick("status", "open, approved, rejected, paid"), amount("claim_amount", 100, 20000),
        amount("days_open", 1, 200, "number of days open"), day("filed_date", "filing date"))),
    Theme("restaurant_orders", "restaurant order", (
        key("order_id"), pick("dish", "pasta, curry, salad, burger, soup, tacos"), staff("waiter"),
        pick("meal", "breakfast, lunch, dinner"), amount("portions", 1, 12, "number of portions"),
        amount("bill", 8, 240), amount("tip", 0, 45), level("table_number", 1, 30), day("order_date"))),
    Theme("train_departures", "train departure", (
        key("departure_id"), code("train_code", "TR"), city("from_station", "departure station"),
        city("to_station", "arrival station"), pick("train_class", "express, regional, night, freight"),
        amount("seats", 40, 800, "seat count"), amount("ticket_price", 9, 190), level("platform", 1, 16),
        day("travel_date"))),
    Theme("bank_transfers", "bank transfer", (
        key("transfer_id"), person("account_holder"), pick("transfer_type", "salary, rent, refund, savings, invoice"),
        pick("channel", "online, branch, phone, mobile"), amount("amount", 10, 9000), amount("fee", 0, 60),
        day("transfer_date"), country("recipient_country"))),
    Theme("wildlife_sightings", "wildlife sighting", (
        key("sighting_id"), pick("species", "wolf, otter, eagle, lynx, beaver, crane"), staff("observer"),
        pick("habitat", "forest, wetland, meadow, mountain, coast"), amount("animal_count", 1, 60),
        level("temperature", 2, 35), day("sighting_date"),
        amount("minutes_watched", 1, 90, "number of minutes watched"))),
    Theme("car_rentals", "car rental", (
        key("rental_id"), person("customer_name"), pick("car_class", "compact, estate, luxury, minivan, electric"),
        city("pickup_city"), amount("rental_days", 1, 30, "number of rental days"), level("daily_rate", 20, 220),
        amount("mileage", 30, 3500), day("pickup_date"))),
    Theme("football_matches", "football match", (
        key("match_id"), pick("home_team", "Rovers, United, Wanderers, Athletic, Dynamo"),
        pick("away_team", "Rangers, City, Albion, Harriers, Olympic"), staff("referee"),
        amount("home_goals", 0, 6, "number of home goals"), amount("attendance", 500, 60000), day("match_date"),
        pick("competition", "league, cup, friendly")), "football matches"),
    Theme("movie_rentals", "movie rental", (
        key("rental_no", "rental number"),
        title("movie_title", "Midnight, Crimson, Electric, Frozen, Secret, Final, Paper, Distant",
              "Chase, Promise, Island, Express, Witness, Storm, Circus, Planet"),
        pick("genre", "drama, comedy, thriller, horror, western"), staff("clerk"), amount("rental_fee", 2, 12),
        amount("late_days", 0, 20, "number of late days"), level("rating", 1, 10), day("rental_date"))),
    Theme("real_estate_listings", "real estate listing", (
        key("listing_id"), code("property_code", "RE"), pick("property_type", "house, flat, studio, villa, loft"),
        city("city"), staff("agent_name"), amount("asking_price", 50000, 900000),
        amount("area_sqm", 20, 320, "area in square meters"), level("bedrooms", 1, 7, "bedroom count"),
        day("listed_date", "listing date"))),
    Theme("power_outages", "power outage", (
        key("outage_id"), pick("cause", "storm, equipment, accident, animal, overload"),
        pick("district", "Harbor, Market, Station, Park, Hillside"),
        amount("affected_homes", 10, 9000, "number of affected homes"),
        amount("duration_hours", 1, 48, "duration in hours"), staff("crew_leader"), amount("repair_cost", 100, 30000),
        day("outage_date"))),
    Theme("volunteer_shifts", "volunteer shift", (
        key("shift_id"), staff("volunteer_name"),
        pick("task_name", "cooking, cleaning, driving, reception, tutoring"), city("site_city"),
        amount("hours", 1, 12, "number of hours"), amount("people_helped", 1, 120, "number of people helped"),
        level("satisfaction", 1, 5, "satisfaction score"), day("shift_date"))),
    Theme("coffee_sales", "coffee sale", (
        key("sale_id"), pick("drink", "latte, espresso, mocha, cappuccino, filter"),
        pick("cup_size", "small, medium, large"), staff("barista"), amount("cups", 1, 40, "cup count"),
        amount("revenue", 3, 200), level("hour_of_day", 6, 20), day("sale_date"))),
    Theme("ship_voyages", "ship voyage", (
        key("voyage_id"),
        title("ship_name", "Northern, Brave, Silver, Pacific, Royal, Swift, Eastern, Blue",
              "Star, Dolphin, Wave, Spirit, Falcon, Horizon, Pearl, Queen"),
        pick("cargo", "grain, oil, cars, timber, coal"), country("flag_country"),
        amount("containers", 10, 900, "container count"), amount("days_at_sea", 2, 60, "number of days at sea"),
        staff("captain"), day("sailing_date"))),
    Theme("repair_tickets", "repair ticket", (
        key("ticket_no", "ticket number"), code("device_code", "DV"),
        pick("device_type", "laptop, phone, tablet, printer, camera"), staff("technician"),
        pick("priority", "low, normal, high, urgent"), amount("labor_hours", 1, 20, "number of labor hours"),
        amount("parts_cost", 0, 600), day("opened_date", "opening date"))),
    Theme("bakery_batches", "bakery batch", (
        key("batch_id"), pick("product", "baguette, rye bread, croissant, muffin, pretzel"), staff("baker"),
        pick("oven", "Oven 1, Oven 2, Oven 3"), amount("loaves", 10, 240, "number of pieces"),
        amount("flour_kg", 2, 80, "flour used in kg"), level("quality_score", 1, 10),
        day("baked_date", "baking date")), "bakery batches"),
    Theme("school_trips", "school trip", (
        key("trip_id"),
        title("trip_name", "Science, Forest, History, Lake, Castle, Music, Garden, Space",
              "Day, Camp, Tour, Walk, Workshop, Visit, Quest, Week"),
        staff("teacher"), pick("transport", "bus, train, ferry, tram"), amount("pupils", 8, 120, "pupil count"),
        amount("cost", 50, 2500), level("class_year", 1, 12, "class year"), day("trip_date"))),
    Theme("software_bugs", "software bug", (
        key("bug_id"), code("bug_code", "BG"), pick("module", "login, search, billing, export, reports"),
        pick("severity", "minor, major, critical, trivial"), staff("assignee"),
        amount("hours_spent", 1, 70, "number of hours spent"),
        amount("user_reports", 0, 90, "number of user reports"), day("reported_date", "reporting date"))),
    Theme("tax_filings", "tax filing", (
        key("filing_id"), person("taxpayer_name"), pick("filing_type", "income, property, business, estate"),
        amount("income", 8000, 160000), amount("tax_due", 200, 42000), level("tax_year", 2014, 2024),
        pick("status", "accepted, audited, pending, late"), staff("clerk"))),
    Theme("art_auctions", "auction lot", (
        key("lot_id"),
        title("artwork", "Blue, Sleeping, Red, Dancing, Silent, Golden, Morning, Broken",
              "Lady, Horses, Valley, Bridge, Orchard, Figure, Harvest, Sea"),
        pick("medium", "oil, watercolor, bronze, ink, pastel"), staff("artist"), amount("starting_bid", 100, 20000),
        amount("final_price", 100, 60000), amount("bids", 1, 45, "bid count"), day("auction_date"))),
    Theme("warehouse_shipments", "shipment", (
        key("shipment_id"), code("tracking_code", "TK"), pick("carrier", "FastShip, Globex, ParcelPro, CargoLine"),
        city("destination_city"), amount("weight_kg", 1, 900, "weight in kg"), amount("boxes", 1, 70, "box count"),
        pick("shipping_mode", "air, sea, road, rail"), day("shipped_date", "shipping date"))),
    Theme("podcast_episodes", "podcast episode", (
        key("episode_id"),
        title("episode_title", "Hidden, Modern, Strange, Ancient, Daily, Local, Secret, Future",
              "Stories, Minds, Money, Voices, Worlds, Habits, Rivers, Machines"),
        staff("host"), pick("topic", "politics, science, sports, music, health"),
        amount("downloads", 50, 90000, "download count"), amount("length_minutes", 8, 130, "length in minutes"),
        level("listener_rating", 1, 5), day("release_date"))),
    Theme("water_samples", "water sample", (
        key("sample_id"), code("sample_code", "WS"), pick("source", "river, lake, well, tap, spring"),
        staff("chemist"), city("city"), amount("lead_ppb", 0, 40, "lead level in ppb"),
        level("acidity_index", 1, 14, "acidity index"), amount("volume_ml", 50, 1000, "volume in ml"),
        day("sampled_date", "sampling date"))),
    Theme("parking_permits", "parking permit", (
        key("permit_id"), person("holder_name"), pick("zone", "Zone A, Zone B, Zone C, Zone D"),
        pick("permit_type", "resident, visitor, business, disabled"), amount("monthly_fee", 5, 150),
        amount("violations", 0, 9, "violation count"), level("valid_until_year", 2023, 2030, "last year of validity"),
        day("issued_date", "issue date"))),
    Theme("chess_games", "chess game", (
        key("game_id"), staff("white_player", "white player"), staff("black_player", "black player"),
        pick("opening", "Sicilian, French, Ruy Lopez, English, Caro-Kann"), pick("result", "white, black, draw"),
        amount("moves", 12, 110, "move count"), amount("minutes_played", 5, 300, "number of minutes played"),
        day("game_date"))),
    Theme("plant_nursery", "nursery plant", (
        key("plant_id"),
        title("plant_name", "Dwarf, Giant, Scarlet, Alpine, Weeping, Silver, Desert, Wild",
              "Maple, Fern, Rose, Cactus, Lily, Willow, Orchid, Ivy"),
        pick("light_need", "full sun, half shade, deep shade"),
        pick("greenhouse", "House 1, House 2, House 3, House 4"), amount("price", 2, 160),
        amount("stock", 0, 120, "number in stock"), level("height_cm", 5, 250, "height in cm"),
        country("native_country"))),
    Theme("fire_inspections", "fire inspection", (
        key("inspection_id"),
        title("building_name", "Maple, Central, Harbor, Grand, Sunset, Park, Stone, River",
              "Tower, Plaza, Mall, School, Theater, Center, House, Arena"),
        staff("inspector"), pick("outcome", "passed, failed, repeat"), amount("hazards", 0, 20, "hazard count"),
        amount("penalty", 0, 5000), level("floors", 1, 40, "floor count"), day("inspection_date"), city("city"))),
    Theme("game_scores", "game score", (
        key("score_id"), staff("player_name"), pick("game_title", "Star Maze, Pixel Race, Dragon Hill, Word Duel"),
        pick("difficulty", "easy, normal, hard, expert"), amount("points", 100, 50000, "number of points"),
        amount("coins", 0, 900, "coin count"), level("stage", 1, 30), day("played_date", "date of play"))),
    Theme("charity_donations", "donation", (
        key("donation_id"), person("donor_name"), pick("cause", "education, health, wildlife, disaster relief, arts"),
        pick("payment_method", "card, cash, bank, check"), country("donor_country"),
        amount("donated_amount", 5, 8000), level("donor_age", 18, 90), day("donation_date"))),
    Theme("factory_runs", "production run", (
        key("run_id"), pick("machine", "Press 1, Press 2, Lathe 1, Lathe 2, Mill 1"), staff("operator_name"),
        pick("shift", "morning, evening, night"), amount("units_made", 50, 4000, "number of units made"),
        amount("defects", 0, 120, "defect count"), amount("energy_kwh", 10, 700, "energy used in kWh"),
        day("run_date"))),
    Theme("vet_treatments", "vet treatment", (
        key("treatment_id"),
        title("pet_name", "Little, Old, Lucky, Happy, Black, White, Tiny, Brave",
              "Max, Bella, Coco, Rocky, Luna, Simba, Daisy, Milo"),
        pick("species", "dog, cat, rabbit, parrot, hamster"), staff("vet_name"),
        pick("treatment", "vaccine, surgery, checkup, dental, x-ray"), amount("cost", 15, 1800),
        amount("nights_kept", 0, 10, "number of nights kept"), level("pet_age", 1, 18), day("treatment_date"))),
    Theme("street_lights", "street light", (
        key("light_id"), code("pole_code", "PL"), pick("lamp_type", "LED, sodium, halogen, mercury"),
        pick("district", "Center, Harbor, Airport, Old Town, Campus"), amount("wattage", 20, 400),
        amount("repairs", 0, 12, "repair count"), level("install_year", 1995, 2024, "year of installation"),
        pick("condition_state", "good, worn, broken", "condition"))),
    Theme("cooking_contests", "contest entry", (
        key("entry_id"), person("cook_name"), pick("cuisine", "Thai, Greek, Indian, French, Mexican"),
        pick("round_name", "opening, semifinal, final", "round"), amount("taste_points", 1, 50, "taste score"),
        amount("style_points", 1, 50, "style score"), amount("prep_minutes", 10, 180, "preparation time in minutes"),
        country("home_country")), "contest entries"),
    Theme("satellite_passes", "satellite pass", (
        key("pass_id"), pick("satellite", "Aurora, Beacon, Comet, Delta, Echo"), city("ground_station"),
        pick("signal_band", "X band, S band, K band"), amount("data_mb", 10, 9000, "data volume in MB"),
        amount("contact_seconds", 60, 900, "contact time in seconds"),
        level("elevation_deg", 5, 90, "elevation in degrees"), day("pass_date")), "satellite passes"),
    Theme("wine_cellar", "wine lot", (
        key("wine_id"),
        title("wine_name", "Chateau, Domaine, Villa, Casa, Mont, Clos, Vigna, Quinta",
              "Bellevue, Dorado, Rouge, Sereno, Blanc, Alto, Verde, Lumen"),
        pick("grape", "merlot, riesling, syrah, malbec, pinot"), country("country"),
        amount("bottles", 1, 300, "bottle count"), level("bottle_price", 6, 400, "price per bottle"),
        level("vintage", 1990, 2023), level("score", 70, 100, "tasting score"))),
    Theme("bike_counters", "bike count", (
        key("count_id"), pick("bridge", "North Bridge, Mill Bridge, Rail Bridge, Park Bridge"),
        pick("weather", "sunny, rain, snow, cloudy, windy"),
        pick("weekday", "Monday, Tuesday, Friday, Saturday, Sunday"), amount("bikes", 20, 3000, "number of bikes"),
        amount("pedestrians", 5, 1500, "number of pedestrians"), level("temperature", 0, 35),
        day("count_date", "counting date"))),
    Theme("theater_plays", "theater play", (
        key("play_id"),
        title("play_title", "Broken, Merry, Dark, Summer, Silent, Paper, Second, Stolen",
              "Crown, Night, Promise, Window, Wedding, Clown, Winter, Door"),
        staff("director"), pick("stage_name", "Main Stage, Studio, Open Air, Cellar", "stage"),
        amount("performances", 1, 90, "performance count"),
        amount("tickets_sold", 20, 9000, "number of tickets sold"), level("cast_size", 2, 40), day("premiere_date"))),
    Theme("road_works", "road work", (
        key("work_id"),
        title("road_name", "Oak, Mill, Church, King, Station, Lake, High, Garden",
              "Street, Lane, Road, Avenue, Square, Drive, Way, Hill"),
        pick("work_type", "paving, drainage, marking, lighting"),
        pick("contractor", "Bauer Ltd, RoadFix, Stonepath, UrbanCo"), amount("budget", 2000, 300000),
        amount("length_m", 20, 4000, "length in meters"), amount("workers", 2, 60, "worker count"),
        day("start_date"))),
    Theme("language_exams", "language exam", (
        key("exam_id"), person("candidate_name"), pick("language", "Spanish, German, Arabic, Korean, Italian"),
        pick("exam_level", "A1, A2, B1, B2, C1"), level("written_score", 0, 100), level("oral_score", 0, 100),
        amount("exam_fee", 30, 260), city("test_city"), day("exam_date"))),
    Theme("dam_readings", "dam reading", (
        key("reading_id"), pick("dam_name", "Stonefall, Highwater, Greyrock, Longvale", "dam"),
        pick("gate_state", "open, closed, partial"), staff("engineer"), amount("inflow", 5, 900),
        amount("outflow", 5, 900), level("water_level", 20, 180), day("reading_date"))),
    Theme("support_calls", "support call", (
        key("call_id"), staff("agent_name"), person("caller_name"),
        pick("issue", "billing, network, password, delivery, warranty"),
        pick("region", "North, South, East, West, Central"),
        amount("wait_seconds", 0, 900, "waiting time in seconds"),
        amount("talk_minutes", 1, 75, "talking time in minutes"), level("satisfaction", 1, 5, "satisfaction score"),
        day("call_date"))),
)  # fmt: skip
