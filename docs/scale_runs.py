"""Public measured runs, to hold the model of scale_model.py against."""

from typing import NamedTuple

from scale_model import A100, H100, Gpu, Shape, speed

TITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/"
LLMC = "https://github.com/karpathy/llm.c/blob/master/scripts/"
FMS = "https://github.com/foundation-model-stack/fms-fsdp#training-throughput-benchmarks"
MOSAIC = "https://github.com/mosaicml/llm-foundry/tree/main/scripts/train/benchmarking#results"


class Run(NamedTuple):
    """measured: tokens a second of one GPU."""

    what: str
    source: str
    model: Shape
    gpu: Gpu
    gpus: int
    how: str
    measured: float

    @property
    def modelled(self) -> float:
        """What the model says instead."""
        return speed(self.model, self.gpu, self.gpus, self.how) / self.gpus

    @property
    def off(self) -> float:
        """The model's speed, as a share of the measured one."""
        return self.modelled / self.measured


def run(what, source, sizes, gpu, gpus, how, measured) -> Run:
    return Run(what, source, Shape(what, *sizes), gpu, gpus, how, measured)


H100_IBM = H100._replace(network=800e9 / 8 / 8)  # 800 Gb/s of a machine of 8
# parameters, layers, width, context, tokens of a step, texts of a pass
GPT2 = (124.3e6, 12, 768, 1024)
LLAMA7 = (6.738e9, 32, 4096, 4096)
LLAMA8 = (8.03e9, 32, 4096, 8192)
WHOLE = (  # runs and benchmarks of six other projects
    run("nanoGPT, 124 M: about 4 days for 295 B tokens", "https://github.com/karpathy/nanoGPT",
        (*GPT2, 480 * 1024, 12), A100, 8, "ddp", 480 * 1024 * 600_000 / (4 * 86_400) / 8),
    run("llm.c, 124 M: 300 ms a step", LLMC + "run_gpt2_124M.sh",
        (*GPT2, 2**19, 64), A100, 8, "ddp", 2**19 / 0.300 / 8),
    run("llm.c, 350 M: 820 ms a step", LLMC + "run_gpt2_350M.sh",
        (354.8e6, 24, 1024, 1024, 2**19, 64), A100, 8, "ddp", 2**19 / 0.820 / 8),
    run("llm.c, 1.6 B: 2.80 s a step", LLMC + "run_gpt2_1558M.sh",
        (1558e6, 48, 1600, 1024, 2**20, 16), H100, 8, "ddp", 2**20 / 2.80 / 8),
    run("TinyLlama, 1.1 B", "https://github.com/jzhang38/TinyLlama#blazingly-fast",
        (1.1e9, 22, 2048, 2048, 2**21, 8), A100, 16, "fsdp", 24_000),
    run("fms-fsdp, 7 B", FMS, (*LLAMA7, 128 * 2 * 4096, 2), A100, 128, "hsdp", 4550),
    run("fms-fsdp, 7 B", FMS, (*LLAMA7, 96 * 2 * 4096, 2), H100_IBM, 96, "hsdp", 9600),
    run("torchtitan, 8 B", TITAN + "llama3_h100_202412_torchtitan.md",
        (*LLAMA8, 8 * 2 * 8192, 2), H100, 8, "fsdp", 6667),
    run("torchtitan, 8 B", TITAN + "llama3_h100_202412_torchtitan.md",
        (*LLAMA8, 128 * 2 * 8192, 2), H100, 128, "fsdp", 6514),
    run("Llama 2, 7 B: 184,320 GPU hours for 2 T tokens (how many GPUs is not said; taken as 8)",
        "https://github.com/facebookresearch/llama/blob/main/MODEL_CARD.md",
        (*LLAMA7, 2**22, 2), A100, 8, "fsdp", 2e12 / 184_320 / 3600),
)  # fmt: skip


def mosaic(sizes, texts, how, speeds) -> tuple[Run, ...]:
    """Rows of MosaicML's table: one shape and share of a GPU, more and more GPUs."""
    return tuple(
        run(f"MosaicML, {sizes[0] / 1e9:.1f} B", MOSAIC, (*sizes, n * texts * 2048, texts),
            H100, n, how, measured)
        for n, measured in speeds.items()
    )  # fmt: skip


GROWING = (  # one share for each GPU, so what is lost is lost to the others
    *mosaic((1.316e9, 24, 2048, 2048), 12, "fsdp-kept", {128: 44_123, 256: 42_555, 512: 39_837}),
    *mosaic((2.652e9, 32, 2560, 2048), 8, "fsdp-kept", {128: 23_422, 256: 22_772, 512: 21_664}),
    *mosaic((6.659e9, 32, 4096, 2048), 6, "fsdp", {128: 10_475, 256: 10_119, 512: 9_670}),
)
# torchtitan, 8 B, on one GPU of 8 and of 128: what the state's shards differ by, in GiB
STATES = {"plain": 82.4 - 67.0, "compiled": 77.0 - 62.0}
