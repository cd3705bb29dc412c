"""Modules whose `forward` is called itself, past their hooks, as sentence-transformers does."""

import functools
import gc
import itertools
import sys
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.recorder import past_call

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 7, 0, 0, 0]])
KEEP = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=16)
    return transformers.BertModel(config).eval()


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, given):
        return self.model.forward(**given).last_hidden_state


def named(ids):
    return [f"t{number}" for number in ids]


@pytest.mark.parametrize("around", [False, True])
def test_padding_and_tokens_of_a_forward_are_those_of_a_call(around):
    model = bert()
    given = {"input_ids": IDS, "attention_mask": KEEP}
    outer = Around(model).eval() if around else model

    def run(forward):
        with torch.no_grad(), heedful.record(outer, tokenizer=named) as recording:
            forward()
        return recording

    called = run(lambda: model(**given))
    passed = run((lambda: outer(given)) if around else (lambda: model.forward(**given)))
    assert passed.missed == {}
    for own, other in zip(called.sequences, passed.sequences, strict=True):
        for call, again in zip(own, other, strict=True):
            assert (again.proof, again.name) == ("proved", call.name)
            assert again.shape == call.shape
            assert again.tokens == call.tokens
            assert torch.equal(again.weights(), call.weights())
    assert passed.sequences[1][0].tokens == ["t1", "t2", "t7"]


def test_each_forward_of_a_model_is_a_pass():
    model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model.forward(IDS[:1])
        model.forward(IDS[:1, :4])
        model(IDS[1:])
    assert [call.pass_index for call in recording] == [0, 0, 1, 1, 2, 2]
    assert [call.tokens for call in recording[::2]] == [
        named([1, 2, 3, 4, 5, 6]),
        named([1, 2, 3, 4]),
        named([1, 2, 7, 0, 0, 0]),
    ]


class Attend(nn.Module):
    def __init__(self, *, by_hand):
        super().__init__()
        self.project, self.by_hand = nn.Linear(12, 36), by_hand

    def forward(self, x, mask=None, *, scale=0.5):
        query, key, value = self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            return ((query @ key.mT * scale).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return F.scaled_dot_product_attention(query, key, value, scale=scale).flatten(2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_model_of_ones_own_whose_forward_is_called_is_recorded(by_hand):
    model = Attend(by_hand=by_hand).eval()
    x = torch.randn(1, 5, 12)
    with torch.no_grad(), heedful.record(model) as called:
        expected = model(x)
    with torch.no_grad(), heedful.record(model) as passed:
        found = model.forward(x)
    assert torch.equal(found, expected)
    assert passed.missed == {}
    assert [call.name for call in passed] == [call.name for call in called]
    assert torch.equal(passed[0].weights(), called[0].weights())


def decorated(function):
    @functools.wraps(function)
    def wrapper(self, *given, **named):
        return function(self, *given, **named)

    return wrapper


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.attend = nn.Embedding(9, 12), Attend(by_hand=True)

    @decorated
    def forward(self, input_ids, other=None, *places, attention_mask=None, **more):
        return self.attend(self.tokens(input_ids))


class Below(Decorated):
    def forward(self, input_ids, *given, **named):
        return super().forward(input_ids.clone(), *given, **named)


@pytest.mark.parametrize("kind", [Decorated, Below])
def test_what_a_forward_was_given_is_read_from_the_outermost_frame(kind):
    model = kind().eval()
    seen = []

    def hook(part, given):
        seen.extend(past_call.Forwards(model.modules()).running(sys._getframe(1), None))

    model.tokens.register_forward_pre_hook(hook)
    model.forward(IDS, 1, 2, attention_mask=KEEP, more=3)
    assert [one.module for one in seen if one.module is model] == [model]
    own = next(one for one in seen if one.module is model)
    assert own.arguments == (IDS, 1, 2)
    assert own.keywords == {"attention_mask": KEEP, "more": 3}


def test_an_encoder_inside_that_was_given_a_mask_of_queries_and_keys_knows_its_padding():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert()

        def forward(self, input_ids, attention_mask):
            hidden = self.bert.embeddings(input_ids)
            mask = (1.0 - attention_mask[:, None, None].float()) * torch.finfo(torch.float32).min
            return self.bert.encoder(hidden, attention_mask=mask).last_hidden_state

    model = Outer().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS, KEEP)
    call = recording.sequences[1][0]
    assert (call.shape, call.proof) == ((3, 3, 3), "assumed")
    assert "padding" in call.why


def decorated_in_silence(function):
    def wrapper(self, *given, **named):
        return function(self, *given, **named)

    return wrapper


def decorated_with_a_default(function):
    @functools.wraps(function)
    def wrapper(self, ids, steps=None, of=function):
        return of(self, ids) if steps is None else of(self, ids, steps)

    return wrapper


def language(decorate, way="__call__"):
    """As many write it: one decorator around `forward` and around what calls it."""

    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.attend = nn.Embedding(9, 12), Weighted()

        @decorate
        def forward(self, input_ids):
            return attended(self.attend, self.tokens(input_ids))

        @decorate
        def generate(self, ids, steps):
            for _ in range(steps):
                ids = torch.cat([ids, getattr(self, way)(ids)[:, -1:, 0].long() % 9], dim=1)
            return ids

        encode = forward
        again = decorate(forward)

    return Language().eval()


@pytest.mark.parametrize(
    ("decorate", "way"),
    [
        *itertools.product([decorated, decorated_in_silence], ["__call__", "forward"]),
        (decorated_with_a_default, "__call__"),
    ],
)
def test_what_shares_a_decorator_with_a_forward_is_none(decorate, way):
    model = language(decorate, way)
    with torch.no_grad(), heedful.record(model, tokenizer=named, every=2) as recording:
        ids = model.generate(IDS[:1, :2], 4)
    assert [call.pass_index for call in recording] == [0, 2]
    assert [call.tokens for call in recording] == [
        named(ids[0, :2].tolist()),
        named(ids[0, :4].tolist()),
    ]


@pytest.mark.parametrize("decorate", [decorated, decorated_in_silence])
def test_a_forward_that_shares_its_decorator_is_found(decorate):
    model = language(decorate)
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model.forward(IDS[:1])
        model.forward(IDS[1:])
    assert [call.pass_index for call in recording] == [0, 1]
    assert [call.tokens for call in recording] == [named(ids) for ids in IDS.tolist()]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attend(by_hand=True) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_layers_whose_forward_is_called_have_their_names(way):
    model = Layers().eval()
    with torch.no_grad(), heedful.record(model, layers=[1, 2]) as recording:
        getattr(model, way)(torch.randn(1, 5, 12))
    assert [(call.name, call.layer) for call in recording] == [("layers.1", 1), ("layers.2", 2)]


class Resumed(Layers):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            yield x


def test_a_forward_that_is_resumed_is_one_pass():
    model, last = Resumed().eval(), None
    with torch.no_grad(), heedful.record(model) as recording:
        for last in model.forward(torch.randn(1, 5, 12)):
            _ = last * 2  # of the user's own
    assert [(call.name, call.pass_index) for call in recording] == [
        (f"layers.{i}", 0) for i in range(3)
    ]


class Before(nn.Module):
    """Attention of parameters alone, and texts that change places, before any module is called."""

    def __init__(self, *, flips):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(36, 12)), nn.Linear(12, 12)
        self.flips = flips

    def forward(me, x):  # noqa: N805 (whatever its name is)
        if me.flips:
            x = x.flip(0)
        query, key, value = F.linear(x, me.weight).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return me.last(x)


@pytest.mark.parametrize("flips", [False, True])
def test_what_a_forward_does_before_a_module_is_called_is_followed(flips):
    model = Before(flips=flips).eval()
    found = []
    for way in (model, model.forward):
        with torch.no_grad(), heedful.record(model) as recording:
            way(torch.randn(2, 5, 12))
        found.append([(call.name, call.proof, call.why) for call in recording])
        assert recording.missed == {}
    assert found[0] == found[1]
    assert ("'flip' put texts" in found[1][0][2]) is flips


def test_an_argument_that_has_another_value_later_is_what_it_was():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert()

        def forward(self, input_ids, attention_mask):
            input_ids, attention_mask = input_ids.flip(0), attention_mask.flip(0)
            return self.bert(input_ids=input_ids, attention_mask=attention_mask)

    model = Turned().eval()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model.forward(IDS, KEEP)
    call = recording.sequences[0][0]
    assert (call.proof, call.tokens) == ("assumed", ["t1", "t2", "t7"])
    assert "'flip' put texts" in call.why


def test_odd_forwards_end_no_recording():
    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("not now")

        def __call__(self, *given):
            return IDS

    class Same(Odd):
        def __getattr__(self, name):
            return self

    def around(self, x):
        return x

    around.__wrapped__ = around
    for forward in (around, Odd(), Same(), staticmethod(around), max):
        kind = type("Kind", (nn.Module,), {"forward": forward})
        model = nn.ModuleList([kind(), Attend(by_hand=True)])
        with torch.no_grad(), heedful.record(model) as recording:
            model[1].forward(torch.randn(1, 5, 12))
        assert [call.name for call in recording] == ["1"]


class Held:
    """Something that no operation has made, after which the forward would be known."""


@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_what_a_forward_lets_go_is_not_held_by_its_frame(way):
    """One whose locals are asked for holds them, before Python 3.13."""
    freed = []

    class Frees(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(9, 12)

        def forward(self, ids):
            held = Held()
            of_held = weakref.ref(held)
            x = self.tokens(ids)
            del held
            freed.append(of_held() is None)
            return x

    model = Frees().eval()
    with torch.no_grad(), heedful.record(model):
        getattr(model, way)(IDS)
    assert freed == [True]


def test_what_a_function_in_a_forward_holds_is_let_go_with_it():
    freed = []

    class Frees(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(9, 12)
            held = Held()
            of_held = weakref.ref(held)

            def forward(self, ids):
                nonlocal held
                own = Held()
                of_own = weakref.ref(own)

                def asks():
                    return own

                x = self.tokens(ids)
                del own, held, asks
                freed.extend((of_own() is None, of_held() is None))
                return x

            self.forward = types.MethodType(forward, self)

    model = Frees().eval()
    with torch.no_grad(), heedful.record(model):
        model.forward(IDS)
    assert freed == [True, True]


def test_a_class_is_not_held_once_its_model_has_been_recorded():
    class Mine(Attend):
        pass

    model = Mine(by_hand=True)
    with torch.no_grad(), heedful.record(model) as recording:
        model.forward(torch.randn(1, 5, 12))
    assert len(recording) == 1
    kind = weakref.ref(Mine)
    del model, Mine
    gc.collect()
    assert kind() is None


class Asks(nn.Module):
    """Takes from its locals what comes back where somebody else asks for them."""

    def __init__(self):
        super().__init__()
        self.attend = Attend(by_hand=True)

    def forward(self, x, factor=2.0):
        given = locals()
        del given["self"]
        return self.attend(x * 1) * given["factor"] * len(given)


class AsksOtherwise(Asks):
    def forward(self, x, factor=2.0):
        given = vars()
        del given["self"]
        return self.attend(x * 1) * given["factor"] * len(given)


@pytest.mark.parametrize("kind", [Asks, AsksOtherwise])
def test_locals_of_a_model_are_its_own(kind):
    """Before Python 3.13 what asks a frame for its locals is given the dict that they have."""
    model, x = kind().eval(), torch.randn(1, 5, 12)
    expected = model(x)
    with torch.no_grad(), heedful.record(model):
        assert torch.equal(model.forward(x), expected)


def test_who_holds_the_locals_of_a_model_keeps_them():
    held = []

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attend(by_hand=True)

        def forward(self, x):
            held.append(sys._getframe().f_locals)
            y = self.attend(x)
            return y, dict(held[-1])

    model = Part().eval()
    with torch.no_grad(), heedful.record(model):
        _, own = model.forward(torch.randn(1, 5, 12))
    assert {"self", "x"} <= set(own)


def test_a_forward_whose_locals_cannot_be_read_goes_on(monkeypatch):
    def fails(frame, closures):
        raise RuntimeError("not now")

    model, x = Layers().eval(), torch.randn(1, 5, 12)
    expected = model(x)
    monkeypatch.setattr(past_call, "_given_to", fails)
    with torch.no_grad(), heedful.record(model):
        assert torch.equal(model.forward(x), expected)


class Chain(Attend):
    """Layers of one class that call each other, and a parent's `forward`."""

    def __init__(self):
        super().__init__(by_hand=True)
        self.next = [None]

    def forward(self, x):
        x = super().forward(x)
        return x if self.next[0] is None else self.next[0].forward(x)


class Wrapped(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base.forward(x)


class Link(Chain):
    """As `Chain`, without a parent's `forward`."""

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x if self.next[0] is None else self.next[0].forward(x)


@pytest.mark.parametrize("kind", [Chain, Link])
@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_layers_of_one_class_that_call_each_other_have_their_names(way, kind):
    layers = nn.ModuleList([kind() for _ in range(3)])
    for one, after in itertools.pairwise(layers):
        one.next[0] = after
    inside = nn.ModuleList([Wrapped(nn.Sequential(Attend(by_hand=True)))])
    x = torch.randn(1, 5, 12)
    for model, names in ((layers, ["0", "1", "2"]), (inside, ["0.base.0"])):
        with torch.no_grad(), heedful.record(model.eval()) as recording:
            getattr(model[0], way)(x)
        assert [call.name for call in recording] == names


def test_a_forward_with_the_words_of_another_is_its_own():
    """`functools.wraps` also copies words and signatures where nothing is wrapped."""

    class Base(nn.Module):
        def forward(self, x):
            raise NotImplementedError

    class Worded(Attend):
        @functools.wraps(Base.forward)
        def forward(self, x):
            x = F.linear(x, super().get_parameter("project.weight"))
            query, key, value = x.unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(query, key, value)

    model = nn.ModuleList([Worded(by_hand=False)])
    with torch.no_grad(), heedful.record(model) as recording:
        model[0].forward(torch.randn(1, 5, 12))
    assert [(call.name, call.proof) for call in recording] == [("0", "proved")]
    assert recording.missed == {}


@pytest.mark.filterwarnings("ignore")  # of torch, as it traces
def test_a_pass_that_is_traced_by_its_forward_is_none():
    model, x = Layers().eval(), torch.randn(1, 5, 12)
    with torch.no_grad(), heedful.record(model, every=2) as recording:
        torch.jit.trace(model, x, check_trace=False)
        model(x)
    assert [call.pass_index for call in recording] == [0, 0, 0]


def test_another_model_of_the_same_class_is_not_asked(monkeypatch):
    asked = []
    given_to = past_call._given_to
    monkeypatch.setattr(past_call, "_given_to", lambda *one: asked.append(one) or given_to(*one))
    student, teacher = Attend(by_hand=True), Attend(by_hand=True)
    x = torch.randn(1, 5, 12)
    with torch.no_grad(), heedful.record(student) as recording:
        teacher(x)
        student(x)
    assert (len(recording), asked) == (1, [])


class OfParameters(nn.Module):
    """Attention by operations alone, in which no module is called."""

    def __init__(self, *, by_hand):
        super().__init__()
        self.weight, self.by_hand = nn.Parameter(torch.randn(36, 12) / 4), by_hand

    def forward(self, x):
        query, key, value = F.linear(x, self.weight).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            return ((query @ key.mT / 2).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_forward_that_attends_and_calls_no_module_is_recorded(
    by_hand,
):
    model = Layers().eval()
    model.layers = nn.ModuleList([OfParameters(by_hand=by_hand)])
    for way in (model, model.layers[0].forward):
        with torch.no_grad(), heedful.record(model) as recording:
            way(torch.randn(1, 5, 12))
        assert [call.proof for call in recording] == ["proved"]
        assert recording.missed == {}


def test_a_forward_that_was_put_on_an_object_is_known():
    own = types.FunctionType(OfParameters.forward.__code__.replace(co_name="own"), globals())
    model = Layers().eval()
    model.layers = nn.ModuleList([OfParameters(by_hand=True) for _ in range(3)])
    for layer in model.layers:
        layer.forward = types.MethodType(own, layer)
    with torch.no_grad(), heedful.record(model) as recording:
        for layer in model.layers:
            layer.forward(torch.randn(1, 5, 12))
    assert [call.layer for call in recording] == [0, 1, 2]


class Executes(Attend):
    def forward(self, x):
        exec("factor = 3.0")
        y = super().forward(x)
        return y * eval("factor")


def test_what_a_model_puts_among_its_locals_stays_there():
    model, x = Executes(by_hand=True).eval(), torch.randn(1, 5, 12)
    expected = model(x)
    with torch.no_grad(), heedful.record(model):
        assert torch.equal(model.forward(x), expected)


def test_what_others_put_among_a_models_locals_stays_there():
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attend(by_hand=True)

        def forward(self, x):
            sys._getframe().f_locals["factor"] = 3.0
            y = self.attend(x)
            return y * sys._getframe().f_locals["factor"]

    model, x = Told().eval(), torch.randn(1, 5, 12)
    expected = model(x)
    with torch.no_grad(), heedful.record(model):
        assert torch.equal(model.forward(x), expected)


@pytest.mark.parametrize("watch", [sys.settrace, sys.setprofile])
def test_a_debugger_may_call_a_module_of_a_model(watch):
    """After what it does Python takes the locals of a frame from the dict that it was given."""
    model, x = Layers().eval(), torch.randn(1, 5, 12)
    expected = model(x)

    def watched(frame, event, argument):
        if frame.f_code is Layers.forward.__code__ and event == "call":
            model.layers[0].project(x)
        return watched

    before = sys.gettrace() if watch is sys.settrace else sys.getprofile()
    with torch.no_grad(), heedful.record(model):
        watch(watched)
        try:
            found = model.forward(x)
        finally:
            watch(before)
    assert torch.equal(found, expected)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(36, 12) / 4)


def attended(self, x):
    query, key, value = F.linear(x, self.weight).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Rebinds(Weighted):
    def forward(self, x, *masks, **named):
        masks = masks[0] if masks else None
        named = named.get("of")
        return attended(self, x * 1)


class Evaluates(Weighted):
    def forward(self, x):
        self.eval()
        return attended(self, x)


class Timer:
    def __call__(self, function):
        self.function = function

        @functools.wraps(function)
        def wrapper(*given, **named):
            return self.function(*given, **named)

        return wrapper


class Timed(Weighted):
    @Timer()
    def forward(self, x):
        return attended(self, x)


def kept_in_a_default(function):
    @functools.wraps(function)
    def wrapper(*given, of=function, **named):
        return of(*given, **named)

    return wrapper


class Bound:
    """A decorator that is an object, and has the function's words."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __get__(self, module, kind=None):
        return self if module is None else types.MethodType(self.__wrapped__, module)


class OfAnObject(Weighted):
    forward = Bound(attended)


def doubled(self, x):
    return x * 2


def after_it(function):
    def forward(self, x):
        return function(self, attended(self, x))

    return forward


class Patched(Weighted):
    forward = after_it(doubled)


def counted():
    calls, ready = 0, None

    def forward(self, x):
        nonlocal calls, last, ready
        calls, ready = calls + 1, ready or attended
        last = ready(self, x)
        return last

    if calls:
        last = None
    return forward


class Counted(Weighted):
    """Its closure has a number that changes, and places that are filled later."""

    forward = counted()


class Kept(Weighted):
    forward = kept_in_a_default(attended)


def test_a_function_with_the_decorator_of_a_forward_is_none():
    class Part(Weighted):
        @decorated
        def forward(self, x):
            return attended(self, x)

    @decorated
    def twice(model, x):
        return model(model(x))

    model = Part().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        twice(model, torch.randn(1, 5, 12))
    assert [call.pass_index for call in recording] == [0, 1]


@pytest.mark.parametrize("decorate", [decorated, torch.no_grad()])
def test_a_forward_that_is_kept_under_another_name_is_found(decorate):
    class Part(Weighted):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(12)

        def forward(self, x):
            return attended(self, self.norm(x))

    Part.before = Part.forward
    Part.forward = decorate(Part.forward)
    model = Layers().eval()
    model.layers = nn.ModuleList([Part() for _ in range(3)])
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, 5, 12))
    assert [call.layer for call in recording] == [0, 1, 2]


def then(function):
    @functools.wraps(function)
    def wrapper(self, ids):
        return self.last(function(self, ids))

    return wrapper


def before_and_then(function):
    def wrapper(self, ids):
        self.tokens(ids)
        return self.last(function(self, ids))

    return wrapper


@pytest.mark.parametrize("decorate", [then, before_and_then])
def test_what_a_decorator_calls_belongs_to_the_pass(decorate):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.first, self.last = nn.Embedding(9, 12), Weighted(), Timed()

        @decorate
        def forward(self, ids):
            return attended(self.first, self.tokens(ids))

        @decorate
        def other(self, ids):
            return self.tokens(ids)

    model = Model().eval()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model.forward(IDS[:1])
    assert [(call.pass_index, call.tokens) for call in recording] == [
        (0, named(IDS[0].tolist()))
    ] * 2


@pytest.mark.parametrize("way", ["__call__", "forward"])
def test_forwards_that_a_function_makes_for_several_classes_are_found(way):
    def made(attend):
        def forward(self, x):
            return attend(self.inside, self.norm(x))

        def init(self):
            nn.Module.__init__(self)
            self.inside, self.norm = Weighted(), nn.LayerNorm(12)

        return type("Made", (nn.Module,), {"__init__": init, "forward": forward})()

    def twice(part, x):
        return attended(part, attended(part, x))

    model = Layers().eval()
    model.layers = nn.ModuleList([made(attended), made(twice)])
    with torch.no_grad(), heedful.record(model) as recording:
        getattr(model, way)(torch.randn(1, 5, 12))
    assert [call.name for call in recording] == ["layers.0", "layers.1", "layers.1"]
    assert recording.missed == {}


class Throws(nn.Module):
    """A `forward` inside, whose first modules are in a `Sequential` that was made for them."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.weight = nn.LayerNorm(12), nn.Linear(12, 12), Weighted().weight

    def forward(self, x):
        return attended(self, nn.Sequential(self.first, self.last)(x))


@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_a_sequential_of_the_moment_hides_no_forward(way):
    model = Wrapped(Throws()).eval()
    with torch.no_grad(), heedful.record(model) as recording:
        getattr(model, way)(torch.randn(1, 5, 12))
    assert [call.name for call in recording] == ["base"]


class Items(dict):
    """As many have it: it raises a KeyError where others say that they have no such attribute."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("way", ["forward", "__call__"])
def test_arguments_that_raise_when_they_are_asked_end_no_pass(way):
    model = Rebinds().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        getattr(model, way)(torch.randn(1, 5, 12), of=Items())
    assert [call.proof for call in recording] == ["proved"]


@pytest.mark.parametrize("kind", [Rebinds, Evaluates, Timed, Counted, Kept, OfAnObject, Patched])
def test_forwards_as_people_write_them_are_found(kind):
    model, x = kind().train(), torch.randn(1, 5, 12)
    for arguments in ((x,), (x, None)) if kind is Rebinds else ((x,),):
        with torch.no_grad(), heedful.record(model) as recording:
            found = model.forward(*arguments)
        assert torch.equal(found, model(x))
        assert [call.name for call in recording] == [kind.__name__]
        assert recording.missed == {}
