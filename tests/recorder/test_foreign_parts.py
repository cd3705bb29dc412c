"""Attention that somebody has put into a model of ours, or of transformers, is seen there too.

Such models are not watched operation by operation where all their attention goes by its own door.
"""

import abc
import copy
import functools
import importlib.util
import os
import types
import weakref
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.recorder.doors import as_made

IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])
SIZES = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3,
         "num_key_value_heads": 3, "intermediate_size": 16}  # fmt: skip
MEMORY = torch.randn(1, 3, 5, 4)


def by_hand(x):
    query = x.unflatten(-1, (3, 4)).transpose(1, 2)
    return ((query @ MEMORY.mT / 2).softmax(-1) @ MEMORY).transpose(1, 2).flatten(2)


def by_kernel(x):
    query = x.unflatten(-1, (3, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(query, MEMORY, MEMORY).transpose(1, 2).flatten(2)


class Part(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, x):
        return self.attend(x)


def of_ours():
    return GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=1, heads=3)).eval()


def of_transformers():
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def block_of(model):
    return model.blocks[0] if isinstance(model, GPT) else model.model.layers[0]


def put(model, name, part):
    setattr(block_of(model), name, part)


def replaced(model, name, attend):
    put(model, name, Part(attend))


def of_a_package_like_torch(model, name, attend):
    kind = type("Part", (Part,), {"__module__": "torchextra.parts"})
    put(model, name, kind(attend))


def hooked(model, name, attend):
    getattr(block_of(model), name).register_forward_hook(lambda part, given, made: attend(made))


def hooked_before(model, name, attend):
    part = getattr(block_of(model), name)
    part.register_forward_pre_hook(lambda part, given: (attend(given[0]),))


def with_its_own_forward(model, name, attend):
    getattr(block_of(model), name).forward = attend


def put_around(model, name, attend):
    part = getattr(block_of(model), name)
    part.forward = functools.wraps(part.forward)(lambda x, around=part.forward: attend(around(x)))


def method_of_the_class(model, name, attend):
    """For this object alone, as a class that somebody has patched is one for all tests."""
    part = getattr(block_of(model), name)
    kind = type(part)
    part.__class__ = types.new_class(kind.__name__, (kind,))
    part.__class__.__module__ = kind.__module__
    part.__class__.forward = lambda self, x: attend(x)


def hooked_by_a_partial(model, name, attend):
    hook = functools.partial(lambda attend, part, given, made: attend(made), attend)
    getattr(block_of(model), name).register_forward_hook(hook)


def hooked_without_gradients(model, name, attend):
    @torch.no_grad()
    def hook(part, given, made):
        return attend(made)

    getattr(block_of(model), name).register_forward_hook(hook)


def hooked_by_a_method(model, name, attend):
    part = Part(attend)
    hook = functools.partial(lambda call, part, given, made: call(made), part.__call__)
    getattr(block_of(model), name).register_forward_hook(hook)


def with_a_partial_as_forward(model, name, attend):
    """As accelerate has it."""
    part = getattr(block_of(model), name)
    part.forward = functools.partial(lambda part, x: attend(x), part)


def with_a_forward_without_gradients(model, name, attend):
    getattr(block_of(model), name).forward = torch.no_grad()(lambda x: attend(x))


def with_the_forward_of_another(model, name, attend):
    getattr(block_of(model), name).forward = nn.Sequential(Part(attend)).__call__


def partial_method_of_the_class(model, name, attend):
    method_of_the_class(model, name, attend)
    kind = type(getattr(block_of(model), name))
    kind.forward = functools.partialmethod(lambda self, attend, x: attend(x), attend)


def by_a_torch_function(model, name, attend):
    class Attends(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return attend(x)

    getattr(block_of(model), name).forward = Attends.apply


def by_a_compiled_function(model, name, attend):
    getattr(block_of(model), name).forward = torch.compile(lambda x: attend(x), backend="eager")


def by_a_checkpoint(model, name, attend):
    calls = functools.partial(torch.utils.checkpoint.checkpoint, attend, use_reentrant=False)
    getattr(block_of(model), name).forward = calls


def traced(model, name, attend):
    put(model, name, torch.jit.trace(Part(attend), torch.randn(1, 6, 12)))


def by_a_property(model, name, attend):
    part = getattr(block_of(model), name)
    kind = type(part)
    part.__class__ = types.new_class(kind.__name__, (kind,))
    part.__class__.__module__ = kind.__module__
    part.__class__.forward = property(lambda self: attend)


def by_a_method_of_a_function(model, name, attend):
    getattr(block_of(model), name).forward = attend.__call__


def by_a_hooked_layer(model, name, attend):
    layer = nn.Identity()
    layer.register_forward_hook(lambda part, given, made: attend(made))
    getattr(block_of(model), name).forward = functools.partial(layer)


class Calling(functools.partial):
    """It says to hold one function, and calls another."""

    def __call__(self, x):
        return self.keywords["calls"](x)


class Otherwise(property):
    def __get__(self, part, kind=None):
        return by_hand if self.fget is len else by_kernel


def by_a_partial_of_ones_own(model, name, attend):
    getattr(block_of(model), name).forward = Calling(torch.add, calls=attend)


def by_a_property_of_ones_own(model, name, attend):
    by_a_property(model, name, attend)
    kind = type(getattr(block_of(model), name))
    kind.forward = Otherwise(len if attend is by_hand else max)


def by_a_mock(model, name, attend):
    # past torch's own look at what it is given, as a mock that says to be a module is taken for one
    own = getattr(block_of(model), name).__dict__
    own["forward"] = mock.MagicMock(spec=nn.Identity(), side_effect=attend)


WAYS = [
    by_a_method_of_a_function,
    by_a_hooked_layer,
    by_a_partial_of_ones_own,
    by_a_property_of_ones_own,
    by_a_mock,
    by_a_torch_function,
    by_a_compiled_function,
    by_a_checkpoint,
    traced,
    by_a_property,
    hooked_by_a_partial,
    hooked_without_gradients,
    hooked_by_a_method,
    with_a_partial_as_forward,
    with_a_forward_without_gradients,
    with_the_forward_of_another,
    partial_method_of_the_class,
    replaced,
    of_a_package_like_torch,
    hooked,
    hooked_before,
    with_its_own_forward,
    put_around,
    method_of_the_class,
]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # which people still have
@pytest.mark.parametrize("attend", [by_hand, by_kernel])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_attention_of_ones_own_is_a_call_beside_the_models(build, way, attend):
    model = build()
    name = "feed" if isinstance(model, GPT) else "mlp"
    with torch.no_grad(), heedful.record(model) as before:
        model(IDS)
    assert [call.shape for call in before] == [(3, 6, 6)]
    way(model, name, attend)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]
    assert recording.missed == {}


@pytest.mark.parametrize("name", ["code", "queue", "queue.attending"])
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_a_module_of_ones_own_may_have_the_name_of_one_of_pythons(build, name, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def hook(part, given, made):\n    return attend(made)\n")
    spec = importlib.util.spec_from_file_location(name, path)
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    mine.attend = by_hand
    model = build()
    part = block_of(model).feed if isinstance(model, GPT) else block_of(model).mlp
    part.register_forward_hook(mine.hook)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]


@pytest.mark.parametrize("function", [copy.copy, abc.abstractmethod, os.path.join])
def test_functions_of_pythons_own_library_are_known(function):
    model = of_ours()
    model.blocks[0].feed.does = function
    assert as_made.judged(model).tells_all


def test_attention_of_a_hook_for_all_modules_is_seen():
    model = of_ours()

    def hook(part, given, made):
        return by_hand(made) if part is model.blocks[0].feed else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad(), heedful.record(model) as recording:
            model(IDS)
    finally:
        handle.remove()
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]


@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_models_as_their_packages_made_them_are_not_watched(build):
    model = build()
    assert as_made.judged(model).is_as_made
    assert as_made.judged(model).tells_all
    with heedful.record(model):  # whose own hooks do not attend
        assert as_made.judged(model).is_as_made


def test_a_layer_that_is_shared_out_among_processes_is_what_it_was():
    """torch puts a class of its own around that of each layer, and hooks on it."""
    model = of_ours()
    feed = model.blocks[0].feed
    from torch.distributed.fsdp import FSDPModule

    def around(kind):
        words = {"__module__": "torch.distributed.fsdp", "__new__": object.__new__}
        return type(f"FSDP{kind.__name__}", (FSDPModule, kind), words)

    own = feed.__class__
    feed.__class__ = around(own)
    assert as_made.judged(model).is_as_made
    feed.__class__ = around(type("Mine", (own,), {}))
    assert not as_made.judged(model).is_as_made
    model.extra = nn.MultiheadAttention(12, 3)
    model.extra.__class__ = around(nn.MultiheadAttention)
    assert not as_made.judged(model).tells_all


def test_a_method_of_an_objects_own_is_seen():
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    model.encoder.layer[0].feed_forward_chunk = by_hand
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]


@pytest.mark.parametrize("way", [replaced, hooked, with_its_own_forward])
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_what_is_put_in_while_a_model_is_recorded_is_told_of(build, way):
    model = build()
    with torch.no_grad(), heedful.record(model) as recording:
        way(model, "feed" if isinstance(model, GPT) else "mlp", by_hand)
        model(IDS)
    assert "put in while it was recorded" in recording.missed[type(model).__name__]


class Proxy:
    """A callable that is anything, or is in no state to be asked."""

    def __init__(self, answer):
        self.__dict__["answer"] = answer

    def __call__(self, *given):
        return self

    def __getattr__(self, name):
        return self.answer(self)


def fails(proxy):
    raise RuntimeError("outside of a context")


def test_odd_objects_in_a_model_end_no_recording():
    of_no_module = type("Odd", (), {"__call__": lambda self: None, "__module__": None})
    around_itself = functools.wraps(len)(lambda x: x)
    around_itself.__wrapped__ = around_itself
    odd = [Proxy(lambda one: one), Proxy(fails), of_no_module(), around_itself]
    odd += [mock.MagicMock(), mock.Mock(spec=nn.Identity), weakref.proxy(around_itself)]
    for one in odd:
        model = of_ours()
        model.blocks[0].feed.__dict__["note"] = one
        assert not as_made.judged(model).is_as_made
        with torch.no_grad(), heedful.record(model) as recording:
            model(IDS)
        assert [call.proof for call in recording] == ["proved"]


def of_exec(words, **names):
    made = dict(names)
    exec(words, made)
    return made["made"]


CALLABLE = "class Made:\n    def __call__(self, x): return by_hand(x)\nmade = Made()"


def exec_object(part):
    part.forward = of_exec(CALLABLE, by_hand=by_hand)


def exec_hook(part):
    made = of_exec(CALLABLE.replace("self, x", "self, part, given, x"), by_hand=by_hand)
    part.register_forward_hook(made)


def exec_function(part):
    part.forward = of_exec("def made(x): return by_hand(x)", by_hand=by_hand)


def class_of_ones_own(part):
    part.kind = type("Mine", (), {})


def module_class_of_ones_own(part):
    part.kind = type("Mine", (nn.Linear,), {})


def autospec(part):
    part.note = mock.create_autospec(by_hand, side_effect=by_hand)


def static(part):
    part.__class__ = type("Made", (type(part),), {"__module__": type(part).__module__,
                                                  "made": staticmethod(by_hand)})  # fmt: skip


def setter(part):
    made = property(torch.nn.Module.extra_repr, lambda self, x: by_hand(x))
    part.__class__ = type(
        "Made", (type(part),), {"__module__": type(part).__module__, "made": made}
    )


def behind_torchs_class(part):
    """As `fully_shard` and `parametrize` leave a layer, whose own class was patched."""
    own = type("Made", (type(part),), {"__module__": "heedful.layers", "made": by_hand})
    part.__class__ = type("FSDPMade", (own,), {"__module__": "torch.distributed.fsdp"})


def hook_of_accelerate(part):
    part._hf_hook = type("Mine", (), {"post_forward": lambda self, part, made: by_hand(made)})()


def several_hooks_of_accelerate(part):
    kind = type("SequentialHook", (), {"__module__": "accelerate.hooks"})
    part._hf_hook = kind()
    part._hf_hook.hooks = (type("Mine", (), {})(),)


@pytest.mark.parametrize(
    "put_in",
    [exec_object, exec_hook, exec_function, class_of_ones_own, module_class_of_ones_own, autospec,
     static, setter, behind_torchs_class, hook_of_accelerate, several_hooks_of_accelerate],
)  # fmt: skip
def test_what_somebody_has_written_is_not_known(put_in):
    model = of_ours()
    put_in(model.blocks[0].feed)
    assert not as_made.judged(model).is_as_made


def quantized(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def compiled(model):
    model.compile(backend="eager")
    return model


def with_a_cache(model):
    model.blocks[0].feed.note = functools.lru_cache(torch.nn.functional.gelu)
    return model


def without_gradients(model):
    part = model.blocks[0].feed
    part.forward = torch.no_grad()(part.forward)
    return model


def with_partials(model):
    add = functools.partial(functools.partial(torch.add, alpha=2), other=functools.partial(max))
    model.blocks[0].feed.note = add
    return model


def with_kinds(model):
    feed = model.blocks[0].feed
    feed.kind, feed.of_python = nn.Linear, dict
    return model


def weight_normed(model):
    torch.nn.utils.parametrizations.weight_norm(model.head)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "made", [quantized, compiled, with_a_cache, without_gradients, with_partials, with_kinds,
             weight_normed],
)  # fmt: skip
def test_what_torch_does_with_a_model_leaves_it_known(made):
    assert as_made.judged(made(of_ours())).is_as_made


@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_attention_of_torchs_own_that_is_reached_as_a_function_is_watched(way):
    model, layer = of_ours(), nn.TransformerEncoderLayer(12, 3, 16, batch_first=True).eval()
    model.blocks[0].feed.forward = getattr(layer, way)
    judged = as_made.judged(model)
    assert (judged.is_as_made, judged.tells_all) == (True, False)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert len(recording) == 2


def test_attention_of_torchs_own_that_is_put_in_while_a_model_is_recorded_is_told_of():
    model = of_ours()
    with torch.no_grad(), heedful.record(model) as recording:
        model.blocks[0].feed = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True).eval()
        model(IDS)
    assert "put in while it was recorded" in recording.missed["GPT"]


@pytest.mark.parametrize("turned", ["texts", "tokens"])
def test_what_is_put_into_a_model_that_is_watched_while_it_is_recorded_is_told_of(turned):
    """Whether torch's operations were watched or not, the names are those of the inputs."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1)
    model = transformers.MixtralForCausalLM(config).eval()
    assert as_made.judged(model) == (True, False)
    with torch.no_grad(), heedful.record(model) as recording:
        model(TEXTS)
    assert recording.missed == {}
    with torch.no_grad(), heedful.record(model) as recording:
        dim = 0 if turned == "texts" else 1
        model.get_input_embeddings().register_forward_hook(lambda part, _, made: made.flip(dim))
        model(TEXTS)
    assert "move texts and tokens" in recording.missed["MixtralForCausalLM"]
    assert recording[0].proof == "assumed"
    assert "put in" in recording[0].why


def test_classes_that_name_each_other_end_no_recording(monkeypatch):
    transformers = pytest.importorskip("transformers")
    model = of_transformers()
    llama = transformers.models.llama.modeling_llama
    monkeypatch.setattr(llama.LlamaMLP, "kind", llama.LlamaMLP, raising=False)
    monkeypatch.setattr(llama.LlamaMLP, "layer", llama.LlamaDecoderLayer, raising=False)
    monkeypatch.setattr(llama.LlamaDecoderLayer, "other", llama.LlamaMLP, raising=False)
    monkeypatch.setattr(llama.LlamaMLP, "first", model.model.layers[0].mlp, raising=False)
    forward = llama.LlamaMLP.forward
    monkeypatch.setattr(forward, "__wrapped__", forward, raising=False)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert [call.proof for call in recording] == ["proved"]


def test_what_torch_and_python_have_of_their_own_is_known():
    model = of_ours()
    feed = model.blocks[0].feed
    feed.one, feed.other = functools.partial(torch.add, alpha=2), torch.nn.functional.gelu
    feed.kind, feed.last = nn.Linear, max
    assert as_made.judged(model).is_as_made
    feed.attends = F.scaled_dot_product_attention
    assert not as_made.judged(model).is_as_made


TEXTS = torch.arange(18).view(3, 6) % 9


def embeddings_of(model):
    return model.tokens if isinstance(model, GPT) else model.model.embed_tokens


@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_a_hook_that_changes_no_place_leaves_texts_and_names_known(build):
    model, kept = build(), []
    embeddings_of(model).register_forward_hook(lambda part, given, made: kept.append(made))
    with torch.no_grad(), heedful.record(model) as recording:
        model(TEXTS)
    assert len(kept) == 1
    for [call], ids in zip(recording.sequences, TEXTS, strict=True):
        assert call.proof == "proved"
        assert torch.equal(call.ids, ids)


MOVES = {
    "flip": lambda made: made.flip(0),
    "index_put": lambda made: made.index_put((torch.tensor(0),), made[-1]),
    "cat": lambda made: torch.cat([made[:1], made[:1], made[2:]]) if len(made) == 3 else made,
}


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_texts_that_a_hook_moves_are_no_longer_known(build, kind):
    model = build()
    with torch.no_grad(), heedful.record(model) as before:
        model(TEXTS)
    embeddings_of(model).register_forward_hook(lambda part, given, made: MOVES[kind](made))
    with torch.no_grad(), heedful.record(model) as recording:
        model(TEXTS)
    place, was = {"flip": (2, 0), "index_put": (0, 2), "cat": (1, 0)}[kind]
    [first], [other] = recording.sequences[place], before.sequences[was]
    torch.testing.assert_close(first.weights(), other.weights(), atol=1e-6, rtol=0)
    assert {call.proof for one in recording.sequences for call in one} == {"assumed"}
    assert f"{kind!r} put texts in other places" in recording[0].why
    assert recording[0].ids is None
    assert recording.verify(model, TEXTS) == {"refuted": 1}


BACK = torch.arange(5, -1, -1)
MOVED = {
    "put": lambda made: made.index_put((torch.tensor(0), BACK), made[0].clone()),
    "roll": lambda made: made.roll(1, 1),
    "copy": lambda made: torch.zeros_like(made).index_copy(1, BACK, made),
    "product": lambda made: torch.eye(6)[BACK] @ made,
    "numbers": lambda made: torch.tensor(made.flip(1).tolist()),
}


@pytest.mark.parametrize("build", [of_ours, of_transformers])
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("way", MOVED)
def test_tokens_that_a_hook_moves_have_no_names(build, way, texts):
    model = build()
    embeddings_of(model).register_forward_hook(lambda part, given, made: MOVED[way](made))
    with torch.no_grad(), heedful.record(model) as recording:
        model(TEXTS[:texts])
    assert recording[0].ids is None
