import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentgrpo.micro_batches import ON_CPU_SHARED, micro_batches, pass_for_rows, recomputed, short_pass


def test_micro_batches_are_cut_by_their_padded_size():
    # 2 rows of 3 are 6 tokens, 3 rows of 3 would be 9; 2 rows of 7 would be 14
    assert micro_batches([2, 3, 3, 7], 8) == [[3], [2], [0, 1]]
    assert micro_batches([2, 3, 3, 7], 1) == [[3], [2], [1], [0]]
    assert micro_batches([2, 3, 3, 7], 28) == [[0, 1, 2, 3]]


def test_rows_of_like_length_come_together_the_longest_first():
    assert micro_batches([9, 1, 8, 2], 16) == [[0], [2], [1, 3]]  # 2 rows of 9 would be 18


def test_a_row_longer_than_a_micro_batch_keeps_a_fraction_of_the_activations_and_its_gradient():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=50, **shape)).train()
    ids, kept, gradients = torch.arange(40)[None], [], []

    def note(tensor):
        kept[-1] += tensor.numel()
        return tensor

    for when in (False, True):
        kept.append(0)
        with recomputed(model, when=when), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        with recomputed(model, when=when):
            loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
        model.zero_grad()
    assert kept[1] < kept[0] / 3  # one input a layer, and the head
    torch.testing.assert_close(gradients[1], gradients[0])
    assert not model.is_gradient_checkpointing


def test_a_pass_is_sized_to_the_longest_row_as_far_as_memory_holds_it():
    def always(_):
        return True

    assert pass_for_rows(800, "cpu", always, ON_CPU_SHARED) == 4096  # twice the default
    assert pass_for_rows(800, "cpu", lambda tokens: tokens < 3000, ON_CPU_SHARED) == 2048  # 800 + 1,024 are less
    assert pass_for_rows(3150, "cpu", always, ON_CPU_SHARED) == 3150 + 1024
    assert pass_for_rows(2150, "cpu", lambda tokens: tokens < 4000, ON_CPU_SHARED) == 2150 + 1024
    assert pass_for_rows(2150, "cpu", lambda tokens: tokens < 3000, ON_CPU_SHARED) == 2150  # the row alone
    assert pass_for_rows(2150, "cpu", lambda tokens: False, ON_CPU_SHARED) == 2048  # it is computed twice
    assert pass_for_rows(2150, "cuda", always) == 4096
    assert pass_for_rows(5000, "cuda", always) == 5000


def test_a_pass_shorter_than_the_longest_row_says_what_it_costs_and_what_to_give():
    assert short_pass(2150, 2150, True) is None
    given, chosen = short_pass(2048, 2150, True), short_pass(2048, 2150, False)
    assert str(given).startswith("--micro-batch-tokens 2048 is shorter than the longest row, 2,150 tokens: ")
    assert str(given).endswith("; give --micro-batch-tokens 3174, which takes memory")
    assert str(chosen).startswith("memory holds passes of 2,048 tokens, which is shorter than the longest row, ")
