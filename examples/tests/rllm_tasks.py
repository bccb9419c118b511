"""Two small tasks and replies to them, for tests of the rLLM adapter."""

from dbbench_adapter.datatypes import Column, Gold, Table, Task

TABLE = Table("fruit", (Column("name"), Column("price", "INT")), (("Plum", 5), ("Pear", 4), ("Fig", 2)))
SELECT = Task(
    id="select",
    question="Which fruit costs less than 5?",
    kind="SELECT",
    tables=(TABLE,),
    gold=Gold(rows=(("Pear", 4), ("Fig", 2)), sql="SELECT name, price FROM fruit WHERE price < 5"),
    table_note="The table is called fruit and has these headers: name, price.",
    skills=("select",),
    typed=True,
    source="lifelong",
)
UPDATE = Task("update", "Set all prices to 7.", "UPDATE", (TABLE,), Gold(sql="UPDATE fruit SET price = 7"), typed=True)


def operate(sql):
    return f"I look.\nAction: Operation\n```sql\n{sql}\n```"


def answer(text):
    return f"I know.\nAction: Answer\nFinal Answer: {text}"


LOOK, RIGHT, WRONG = operate("SELECT * FROM fruit;"), answer("[('Pear', 4), ('Fig', 2)]"), answer("[('Plum', 5)]")
ILLEGAL = "The cheap ones are Pear and Fig."
