from sql_agent.cluster.network import fill, handed_over


def test_what_belongs_to_a_node_or_a_process_stays_there():
    command = {"JUDGE_API_KEY": "k", "MY_ENDPOINT": "here", "RAY_AUTH_TOKEN": "t", "TMPDIR": "/x", "PYTHONPATH": "/y"}
    assert handed_over(command) == {"JUDGE_API_KEY": "k", "MY_ENDPOINT": "here"}


def test_secrets_are_the_commands_and_everything_else_is_the_nodes_where_it_has_it():
    node = {"HOME": "/of/the/node", "JUDGE_API_KEY": "old", "AGENTGRPO_DB_PASSWORD": "old", "AGENTGRPO_RUN_ID": "old"}
    new = {"JUDGE_API_KEY": "new", "AGENTGRPO_DB_PASSWORD": "new", "AGENTGRPO_TOKEN": "new", "AGENTGRPO_RUN_ID": "new"}
    fill(node, {"HOME": "/of/the/command", "MY_ENDPOINT": "there", **new})
    assert node == {"HOME": "/of/the/node", "MY_ENDPOINT": "there", **new}
