"""Each of two texts is recorded without padding, for several names of the arguments."""

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, N, named
from shown_maps import D, H, looked_at
from torch import nn

LENGTHS = (4, 2), (3, N)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": H * D, "num_attention_heads": H, "intermediate_size": 7}
        config = transformers.BertConfig(vocab_size=80, num_hidden_layers=2, **sizes)
        self.bert = transformers.BertModel(config)

    def forward(self, ids, attention_mask):
        return self.bert(input_ids=ids, attention_mask=attention_mask)[0]


class Of(nn.Module):
    """Encodes two texts, the second first; subclasses define the arguments."""

    def __init__(self):
        super().__init__()
        self.encode = Bert()

    def both(self, first, second):
        return [self.encode(*text) for text in (second, first)]


class Dicts(Of):
    def forward(self, query, document):
        return self.both(*([text["ids"], text["attention_mask"]] for text in (query, document)))

    def inputs(self, first, second):
        return [dict(zip(("ids", "attention_mask"), text, strict=True)) for text in (first, second)]


class Listed(Dicts):
    def forward(self, features):
        return super().forward(*features)

    def inputs(self, first, second):
        return [super().inputs(first, second)]


class Numbered(Of):
    def forward(self, input_ids, attention_mask, input_ids2, attention_mask2):
        return self.both((input_ids, attention_mask), (input_ids2, attention_mask2))

    def inputs(self, first, second):
        return [*first, *second]


class Lettered(Numbered):
    def forward(self, input_ids_a, input_ids_b, attention_mask_b, attention_mask_a):
        return self.both((input_ids_a, attention_mask_a), (input_ids_b, attention_mask_b))

    def inputs(self, first, second):
        return [first[0], second[0], second[1], first[1]]


class Unnamed(Of):
    def forward(self, a, m, b, n):
        return self.both((a, m), (b, n))

    def inputs(self, first, second):
        return [*first, *second]


@pytest.mark.parametrize("way", [Dicts, Listed, Numbered, Lettered, Unnamed])
def test_each_of_two_texts_is_recorded_without_its_padding(way):
    texts = []
    for lengths, ids in zip(LENGTHS, (IDS[:, :4], OTHERS), strict=True):
        mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
        texts.append((ids, mask))
    model = way().eval()
    inputs = model.inputs(*texts)
    recording = looked_at(model, *inputs, tokenizer=named)
    assert {(call.proof, call.layout) for call in recording} == {("proved", "told")}
    layers = len(recording) // 2
    for b, calls in enumerate(recording.sequences):
        for number, call in enumerate(calls):
            place = 1 - number // layers
            length, ids = LENGTHS[place][b], texts[place][0]
            assert call.shape == (H, length, length)
            assert call.key_tokens == named(ids[b, :length])
