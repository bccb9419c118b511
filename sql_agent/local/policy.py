"""The policy of local training: a causal LM of transformers, with a LoRA adapter or trained as a whole.

It samples in batches with transformers' `generate`. Log-probs for the update come from one forward pass over prompt and
completion, padded right. One process holds everything; tensor parallelism and model servers are the main job's
(`sql_agent.train_sql_agent`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
)

from agentgrpo.checks import UsageError
from agentgrpo.machine import uses_bfloat16
from sql_agent.architectures import hands_states_on
from sql_agent.credit.row import Row
from sql_agent.local.datatypes import Sample, Sampling
from sql_agent.local.model_files import base_name, is_adapter
from sql_agent.local.packed_model import Scores, base_of, output_layer, packs, score_tokens
from sql_agent.settings.groups import PrecisionName, SharedPrompts
from sql_agent.settings.local import AdapterConfig

REFERENCE = "reference"
NUCLEUS = 512
"""Top-p looks at so many of the most likely tokens first, because sorting a vocabulary of 152,000 for a batch of 8
takes 0.1 s on a CPU."""


@dataclass(frozen=True)
class Rows:
    """A batch of rows as tensors, padded right; every field has shape (B, T), where T covers prompt and response."""

    ids: Tensor
    attention: Tensor
    """1 on tokens, 0 on padding."""
    mask: Tensor
    """True on the tokens that the policy sampled."""
    old_log_probs: Tensor
    """The sampler's log-probs; 0 where `mask` is False."""
    advantages: Tensor
    """The advantage of each token; 0 where `mask` is False, and in a row without credit."""

    @classmethod
    def of(cls, rows: Sequence[Row], *, pad_id: int, device: torch.device | str = "cpu") -> Self:
        def padded(values: Sequence[Sequence[float]], padding: float, dtype: torch.dtype) -> Tensor:
            parts = [torch.tensor(each, dtype=dtype) for each in values]
            return pad_sequence(parts, batch_first=True, padding_value=padding).to(device)

        return cls(
            padded([row.ids for row in rows], pad_id, torch.long),
            padded([(1,) * len(row.ids) for row in rows], 0, torch.long),
            padded([row.sampled for row in rows], 0, torch.bool),
            padded([row.log_probs for row in rows], 0.0, torch.float32),
            padded([row.credit or (0.0,) * len(row.ids) for row in rows], 0.0, torch.float32),
        )


class LocalPolicy:
    """A model, its tokenizer, its adapter, and the reference policy.

    Args:
        model: a PEFT model with the trained adapter active, or a whole model of transformers, which has no
            reference of its own.
        reference: a separate frozen model; None: the model as it was loaded (see `reference_log_probs`).
        bfloat16: whether log-probs are computed under bfloat16 autocast; sampling never is.
        pass_tokens: tokens of one forward and backward pass, where the settings name no number; None: the device's
            default.
        shared_prompts: what computes what rows share once; see the setting.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        reference: Any = None,
        *,
        bfloat16: bool = False,
        pass_tokens: int | None = None,
        shared_prompts: SharedPrompts | None = None,
    ) -> None:
        self.pass_tokens = pass_tokens
        self.shared_prompts: SharedPrompts | None = shared_prompts
        self.model, self.tokenizer, self._reference, self.bfloat16 = model, tokenizer, reference, bfloat16
        base = base_of(model)
        self.max_positions = int(getattr(base.config.get_text_config(), "max_position_embeddings", 0) or 1 << 20)
        self._hands_states_on = hands_states_on(base.config.get_text_config().to_dict())
        stops: Any = base.generation_config.eos_token_id if base.generation_config is not None else None
        stops = stops if isinstance(stops, list) else [stops]
        eos: Any = tokenizer.eos_token_id
        pad: Any = tokenizer.pad_token_id
        self._stop_ids: list[int] = sorted({i for i in (*stops, eos) if i is not None})
        self.pad_id: int = self._stop_ids[0] if pad is None else pad
        model.eval()

    @property
    def device(self) -> torch.device:
        return self.model.device

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling], *, max_new_tokens: int, **more: Any
    ) -> list[Sample]:
        """Sample one completion of each prompt, all in one batch; a prefix that all prompts share is computed once.

        Args:
            prompts: token ids; each has to be shorter than the model's context.
            sampling: one per prompt.
            max_new_tokens: limit of each completion; a prompt that fills most of the context gets fewer.
            more: further arguments of transformers' `generate`, e.g. a streamer.
        """
        longest, shared = max(map(len, prompts)), self._shared(prompts)
        ids = torch.full((len(prompts), longest), self.pad_id)
        attention = torch.zeros_like(ids)
        ids[:, :shared], attention[:, :shared] = torch.tensor(prompts[0][:shared], dtype=torch.long), 1
        for row, prompt in enumerate(prompts):  # the shared prefix, padding, the rest of each prompt
            ids[row, longest - len(prompt) + shared :] = torch.tensor(prompt[shared:])
            attention[row, longest - len(prompt) + shared :] = 1
        if shared:
            beginning = ids[:1, :shared].to(self.device)
            cache = self.model(input_ids=beginning, use_cache=True, logits_to_keep=1).past_key_values
            cache.batch_repeat_interleave(len(prompts))
            more = {**more, "past_key_values": cache}
        recorder = _SampleAndRecord(sampling, self.device)
        # with a model's own sampling settings, as Qwen's repetition penalty, the log-probs would be of another policy
        plain = GenerationConfig(eos_token_id=self._stop_ids, pad_token_id=self.pad_id)
        base_of(self.model).generation_config = plain
        whole: Tensor = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=attention.to(self.device),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=min(max_new_tokens, self.max_positions - min(map(len, prompts))),
            logits_processor=LogitsProcessorList([recorder]),
            **more,
        )  # pyright: ignore[reportCallIssue]
        replies, log_probs = whole[:, longest:].tolist(), recorder.finish(whole[:, -1]).tolist()
        return [
            self._sample(reply, logs, self.max_positions - len(prompt))
            for prompt, reply, logs in zip(prompts, replies, log_probs, strict=True)
        ]

    def _shared(self, prompts: Sequence[Sequence[int]]) -> int:
        """Return the length of the prefix that all prompts share, shorter than each; 0 if it cannot be shared."""
        config = base_of(self.model).config
        # the padding after the prefix would fill a sliding window, or go into a state
        if len(prompts) == 1 or any(DynamicCache(config=config).is_sliding) or self._hands_states_on:
            return 0
        first, last = min(prompts, key=tuple), max(prompts, key=tuple)
        same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        return min(same, *(len(prompt) - 1 for prompt in prompts))

    def _sample(self, reply: list[int], log_probs: list[float], room: int) -> Sample:
        reply = reply[:room]  # a shorter prompt in the batch may have had more room
        end = next((place for place, token in enumerate(reply) if token in self._stop_ids), None)
        kept = len(reply) if end is None else end + 1
        return Sample(tuple(reply[:kept]), tuple(log_probs[:kept]), "length" if end is None else "stop")

    def log_probs(self, rows: Rows, *, temperature: float = 1.0) -> Tensor:
        """Compute log-probs of the sampled tokens, with gradient, shape (B, T); 0 where the mask is False.

        Args:
            temperature: the sampling temperature of the tokens.
        """
        return self._log_probs(self.model, rows, temperature)

    @torch.no_grad()
    def reference_log_probs(self, rows: Rows, *, temperature: float = 1.0) -> Tensor:
        """Compute the same log-probs under the reference policy, without gradient.

        The reference is the separate model if there is one, else the model as it was loaded: the base with the adapter
        disabled, or with the adapter that it came with.
        """
        if self._reference is not None:
            return self._log_probs(self._reference, rows, temperature)
        with self._as_loaded():
            return self._log_probs(self.model, rows, temperature)

    def _log_probs(self, model: Any, rows: Rows, temperature: float) -> Tensor:
        log_probs = self._scores(model, rows, temperature).log_probs
        return log_probs.new_zeros(rows.mask.shape).masked_scatter(rows.mask, log_probs)

    def scores(self, rows: Rows) -> Scores:
        """Score the sampled tokens, row by row, at temperature 1, with the metrics of `Scores`."""
        return self._scores(self.model, rows, 1.0, metrics=True)

    def _scores(self, model: Any, rows: Rows, temperature: float, *, metrics: bool = False) -> Scores:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            return score_tokens(
                model,
                rows.ids,
                rows.attention,
                rows.mask,
                temperature=temperature or 1.0,
                metrics=metrics,
                shared_prompts=self.shared_prompts,
            )

    @contextmanager
    def _as_loaded(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            if REFERENCE in self.model.peft_config:
                self.model.set_adapter(REFERENCE)
                try:
                    yield
                finally:
                    self.model.set_adapter("default")
            else:
                with self.model.disable_adapter():
                    yield
        finally:
            self.model.train(training)

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the adapter, or the whole model; `load_policy` and PEFT read the folder."""
        which: dict[str, Any] = {"selected_adapters": ["default"]} if isinstance(self.model, PeftModel) else {}
        self.model.save_pretrained(str(folder), **which)
        self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Replace the weights of the adapter, or of the whole model, by those of a checkpoint.

        Raises:
            ValueError: an adapter's tensors differ in name or shape from this one's.
        """
        if not isinstance(self.model, PeftModel):
            saved: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype, trust_remote_code=False)
            self.model.load_state_dict(saved.state_dict())
            return
        from peft import get_peft_model_state_dict, set_peft_model_state_dict
        from safetensors.torch import load_file

        weights = load_file(folder / "adapter_model.safetensors")
        own = get_peft_model_state_dict(self.model)
        if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in weights.items()}:
            raise ValueError(
                f"the adapter in {folder} has other tensors than this run's; resume with the same settings"
            )
        set_peft_model_state_dict(self.model, weights)


class _SampleAndRecord(LogitsProcessor):
    """Applies each row's own temperature and top-p, and records the log-prob of the chosen token."""

    def __init__(self, sampling: Sequence[Sampling], device: torch.device) -> None:
        self._greedy = torch.tensor([s.temperature == 0 for s in sampling], device=device)
        self._temperature = torch.tensor([[s.temperature or 1.0] for s in sampling], device=device)
        self._top_p = torch.tensor([[s.top_p if s.temperature else 0.0] for s in sampling], device=device)
        self._nucleus = any(s.top_p < 1 and s.temperature > 0 for s in sampling)
        self._last: Tensor | None = None
        self._recorded: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._last is not None:
            self._note(input_ids[:, -1])
        self._last = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        allowed = self._last
        if self._nucleus:
            allowed = _keep_nucleus(allowed, self._top_p)
        if bool(self._greedy.any()):
            best = torch.full_like(allowed, -torch.inf).scatter(-1, scores.argmax(-1, keepdim=True), 0.0)
            allowed = torch.where(self._greedy.unsqueeze(-1), best, allowed)
        return allowed

    def finish(self, last_ids: Tensor) -> Tensor:
        """Return log-probs of the whole batch, shape (B, new tokens); what follows a row's end-of-sequence token has no
        meaning."""
        self._note(last_ids)
        return torch.stack(self._recorded, dim=-1)

    def _note(self, chosen: Tensor) -> None:
        assert self._last is not None
        self._recorded.append(self._last.gather(-1, chosen.unsqueeze(-1)).squeeze(-1))


def _keep_nucleus(log_probs: Tensor, top_p: Tensor) -> Tensor:
    """Set all log-probs to -inf but those of the nucleus, the fewest tokens whose probabilities sum to top_p
    (arXiv:1904.09751)."""
    ordered, order = log_probs.topk(min(NUCLEUS, log_probs.shape[-1]), dim=-1)
    if bool((ordered.exp().sum(-1, keepdim=True) < top_p).any()):
        ordered, order = log_probs.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    kept = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.full_like(log_probs, -torch.inf).scatter(-1, order, kept)


def load_policy(
    path: str | Path,
    *,
    adapter: AdapterConfig,
    device: str,
    reference_path: str | Path | None = None,
    load_in_4bit: bool = False,
    gradient_checkpointing: bool = False,
    precision: PrecisionName = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
    pass_tokens: int | None = None,
    shared_prompts: SharedPrompts | None = None,
) -> LocalPolicy:
    """Load a policy that is ready to sample and to be trained.

    Args:
        path: a Hugging Face model, or the folder of an adapter. An adapter is trained further with its own rank, and a
            frozen copy of it is the reference policy.
        adapter: the new adapter, if `path` is no adapter.
        device: cpu or cuda.
        reference_path: a separate frozen reference model.
        precision: precision of log-probs and their gradient on a CPU.
        tokenizer: the model's tokenizer, if it has been loaded already.
        pass_tokens, shared_prompts: see `LocalPolicy`.
    Raises:
        ValueError: 4-bit without bitsandbytes or without a GPU; an adapter on the output layer; shared prompts are
            asked for, and the model's attention is not that of packed rows.
    """
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    trained = Path(path) if is_adapter(Path(path)) else None
    base = load_model(base_name(trained) if trained else path, device=device, load_in_4bit=load_in_4bit)
    if shared_prompts and not packs(base, shared_prompts):
        raise UsageError(
            f"--shared-prompts {shared_prompts} needs a model with full causal attention without dropout; the model in "
            f"{path} ({base.config.model_type}) has another one: leave the flag out"
        )
    if load_in_4bit:
        base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    if trained:
        model: Any = PeftModel.from_pretrained(base, trained, is_trainable=True)
        model.load_adapter(trained, adapter_name=REFERENCE)
        model.set_adapter("default")
    else:
        modules = adapter.target_modules
        model = get_peft_model(
            base,
            LoraConfig(
                task_type="CAUSAL_LM",
                r=adapter.rank,
                lora_alpha=adapter.alpha,
                lora_dropout=adapter.dropout,
                target_modules=modules if isinstance(modules, str) else list(modules),
            ),
        )
    output_layer(base_of(model))
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    frozen = load_model(reference_path, device=device).eval().requires_grad_(False) if reference_path else None
    bfloat16 = device == "cpu" and uses_bfloat16(precision, base.num_parameters())
    return LocalPolicy(
        model,
        tokenizer,
        frozen,
        bfloat16=bfloat16,
        pass_tokens=pass_tokens,
        shared_prompts=shared_prompts,
    )


def load_model(path: str | Path, *, device: str, load_in_4bit: bool = False) -> Any:
    """Load a causal LM in evaluation mode: float32 on a CPU, bfloat16 or 4-bit (NF4) on a GPU.

    An adapter is merged into its base model.
    """
    folder = Path(path)
    if is_adapter(folder):
        base = load_model(base_name(folder), device=device)
        return PeftModel.from_pretrained(base, folder).merge_and_unload()  # pyright: ignore[reportCallIssue]
    where = (
        str(folder.resolve()) if folder.is_dir() else str(path)
    )  # an absolute path, because adapters name their base by it
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    if not load_in_4bit:
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, trust_remote_code=False)
        return model.to(device)
    quantised = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=True
    )
    return AutoModelForCausalLM.from_pretrained(
        where, dtype=dtype, quantization_config=quantised, device_map=device, trust_remote_code=False
    )
