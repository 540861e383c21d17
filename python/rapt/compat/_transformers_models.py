"""Decides which model classes of transformers can use attn_implementation="rapt": those that delegate their attention.

A class that computes its scores itself would get rapt's masks (bool or none) and add them to its scores. transformers
refuses such a class for "sdpa", but accepts every registered name. So register() wraps the one function in which every
model resolves its implementation. Nothing here imports transformers before that.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import NamedTuple

from torch.compiler import is_dynamo_compiling

from .._errors import Unsupported

NAMES: set[str] = set()  # names under which rapt is registered
ATTENTION = re.compile(r"^class \w*Attention\w*\(", re.MULTILINE)
OWN_TABLE = re.compile(r"_CLASSES\[\s*(self\.)?(config\._)?attn_implementation\s*\]")
EXTENDED = re.compile(r"(F\.pad|torch\.cat)\(\[?\s*attention_mask\b")
NAMES_SDPA = re.compile(r"_attn_implementation\s*==\s*[\"']sdpa[\"']")


def watch(name: str) -> None:
    """From now on, a model that cannot use attn_implementation=`name` raises Unsupported when it is requested."""
    from transformers import PreTrainedModel

    original = PreTrainedModel.get_correct_attn_implementation
    if not NAMES:

        @functools.wraps(original)
        def get_correct_attn_implementation(self, *arguments, **options):
            chosen = original(self, *arguments, **options)
            if chosen in NAMES:
                why = refusal(type(self))
                configured(type(self.config))
                if why is not None:
                    raise Unsupported(_sentence(chosen, type(self).__name__, why))
            return chosen

        PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    NAMES.add(name)


def _sentence(name: str, model: str, why: str) -> str:
    return (
        f"attn_implementation is {name!r}: {model} {why}; use attn_implementation='eager', "
        f"or, as part of another model, {{'': {name!r}, '<its sub-config>': 'eager'}}"
    )


@functools.lru_cache(maxsize=None)
def refusal(model: type) -> str | None:
    """Why a model class cannot use it; None if it can. Judged by the source code of its module and of its base classes.

    A class that supports "sdpa" is correct with rapt's masks, which are the same, wherever it computes its scores.
    """
    sources = [source for source in map(_source, _family(model)) if source is not None]
    if not sources:
        return "has no source code, so rapt cannot see how it computes attention"
    if any(OWN_TABLE.search(source) for source in sources):
        return "chooses its attention from its own table"
    if model._supports_sdpa:
        return None
    with_attention = [source for source in sources if ATTENTION.search(source)]
    if any("ALL_ATTENTION_FUNCTIONS" not in source for source in with_attention):
        return "computes its attention scores itself"
    if with_attention and not model._supports_attention_backend:
        return "does not declare that its attention can be replaced (_supports_sdpa, _supports_attention_backend)"
    return None  # a class without attention may use other models' attention; those are checked themselves


def _family(model: type) -> list[type]:
    from transformers import PreTrainedModel

    return [one for one in model.__mro__ if issubclass(one, PreTrainedModel) and one is not PreTrainedModel]


def _source(model: type) -> str | None:
    try:
        return inspect.getsource(sys.modules[model.__module__])
    except (KeyError, OSError, TypeError):  # defined by hand, in an interactive session
        return None


class Configured(NamedTuple):
    """The common properties of the model classes of one configuration class."""

    refusal: str | None
    names_sdpa: bool  # it skips masks only for "sdpa": so "rapt" always gets masks
    says_causal: bool  # layers have is_causal = True though some are bidirectional: without a mask they would be causal
    additive: bool  # it adds its own terms to masks: so it gets those of "eager"


UNKNOWN = Configured(None, False, False, False)
CONFIGURED: dict[type, Configured] = {}  # filled when models are built, because torch.compile cannot read sources


def configured(config: type) -> Configured:
    if config not in CONFIGURED:
        if is_dynamo_compiling():
            return UNKNOWN
        models = list(_models_of(config))
        reasons = [refusal(model) for model in models]
        why = None if None in reasons or not reasons else reasons[0]
        sources = [_source(model) or "" for model in models]
        names_sdpa = any(NAMES_SDPA.search(source) for source in sources)
        says_causal = any("self.is_causal = True" in one and "create_bidirectional" in one for one in sources)
        additive = any(EXTENDED.search(_source(model) or "") for model in models if not model._supports_sdpa)
        CONFIGURED[config] = Configured(why, names_sdpa, says_causal, additive)
    return CONFIGURED[config]


def _models_of(config: type):
    from transformers import PreTrainedModel

    classes = [PreTrainedModel]
    while classes:
        below = classes.pop().__subclasses__()
        classes += below
        yield from (model for model in below if getattr(model, "config_class", None) is config)


def mask_maker(name: str):
    """The function that makes masks for attn_implementation=`name`: that of "sdpa", but see Configured.

    It refuses again, for implementations that were set in a configuration after its model was built.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    def mask(*sizes, config=None, allow_is_causal_skip=True, allow_is_bidirectional_skip=False, **options):
        known = UNKNOWN if config is None else configured(type(config))
        if known.refusal is not None:
            raise Unsupported(_sentence(name, f"the model of {type(config).__name__}", known.refusal))
        options["allow_is_causal_skip"] = allow_is_causal_skip and not known.names_sdpa
        options["allow_is_bidirectional_skip"] = allow_is_bidirectional_skip and not known.says_causal
        make = eager_mask if known.additive else sdpa_mask
        return make(*sizes, config=config, **options)

    return mask
