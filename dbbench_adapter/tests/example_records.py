"""One invented record of each form, for the tests of what reads files."""

HASH = "0123456789abcdef0123456789abcdef"
UPDATE = {
    "description": "Set the price of Plum to 7.",
    "label": ["UPDATE `Fruit List` SET `Price` = '7' WHERE `Fruit` = 'Plum'"],
    "type": ["UPDATE"],
    "table": {
        "table_name": "Fruit List",
        "table_info": {
            "columns": [{"name": "Fruit", "type": "TEXT"}, {"name": "Price", "type": "INT"}],
            "rows": [["Plum", "5"], ["Pear", 4]],
        },
    },
    "add_description": "The table is called Fruit List.",
    "answer_md5": f"[('{HASH}',)]",
}
SELECT = {
    **UPDATE,
    "description": "Which fruit is cheap?",
    "label": ["Pear"],
    "type": ["other"],
    "sql": {"query": "SELECT 1", "length": 8},
    "answer_md5": None,
}
LIFELONG = {
    "sample_index": 0,
    "instruction": "List cheap fruit.",
    "answer_info": {"direct": [["Pear", 4]], "md5": None, "sql": "SELECT name, price FROM fruit ORDER BY price;"},
    "table_info": {
        "name": "fruit",
        "column_info_list": [{"name": "name", "type": "TEXT"}, {"name": "price", "type": "INT"}],
        "row_list": [["Pear", 4], ["Plum", 5]],
    },
    "skill_list": ["select"],
}
