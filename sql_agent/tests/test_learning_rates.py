from sql_agent.learning_rates import learning_rate_hint, usual_learning_rate


def test_larger_models_and_whole_ones_take_smaller_rates():
    sizes = (900_000, 20_000_000, 999_999_999, 1_000_000_000, None)
    assert [usual_learning_rate(size, method="grpo", lora=False) for size in sizes] == [5e-4, 3e-5, 3e-5, 1e-6, 1e-6]
    assert [usual_learning_rate(size, method="grpo", lora=True) for size in sizes] == [1e-3, 3e-4, 3e-4, 2e-5, 2e-5]


def test_a_default_that_is_far_off_is_said_with_the_flag():
    assert learning_rate_hint(2e-5, 134_515_008, method="grpo", lora=True) == (
        "learning rate: the default is 2e-05, and an adapter of a model of 134,515,008 weights takes about 0.0003: "
        "give --learning-rate 0.0003"
    )
    assert learning_rate_hint(2e-4, 134_515_008, method="sft", lora=False) is None  # 2.5 times less than 5e-4
    assert learning_rate_hint(2e-4, 7_000_000_000, method="sft", lora=False) == (
        "learning rate: the default is 0.0002, and a model of 7,000,000,000 weights takes about 1e-05: "
        "give --learning-rate 1e-05"
    )
    assert learning_rate_hint(2e-4, None, method="sft", lora=False) is None
