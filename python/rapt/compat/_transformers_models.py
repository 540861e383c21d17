"""Decides which model classes of transformers can use attn_implementation="rapt". Only classes that delegate their
attention can use it.

Other classes compute their scores themselves. Such a class would get the masks that are made for rapt (True and False,
or no mask) and add them to its scores, which is wrong. transformers refuses such a class for "sdpa", but accepts every
registered name. So register() wraps the function in which every model resolves its implementation. This module imports
transformers only when register() is called.
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
    """After this call, requesting attn_implementation=`name` for a model that cannot use it raises Unsupported."""
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
    """The reason why a model class cannot use "rapt"; None if it can. The source code of its module and of the modules
    of its base classes decides.

    A class that supports "sdpa" can use "rapt", because both get the same masks, even if it computes scores itself.
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
    return None  # a class without attention can contain other models; these are checked separately


def _family(model: type) -> list[type]:
    from transformers import PreTrainedModel

    return [one for one in model.__mro__ if issubclass(one, PreTrainedModel) and one is not PreTrainedModel]


def _source(model: type) -> str | None:
    try:
        return inspect.getsource(sys.modules[model.__module__])
    except (KeyError, OSError, TypeError):  # the class was defined in an interactive session
        return None


class Configured(NamedTuple):
    """The common properties of the model classes of one configuration class."""

    refusal: str | None
    names_sdpa: bool  # the model allows a missing mask only for "sdpa", so for "rapt" masks are always made
    says_causal: bool  # all layers have is_causal = True, but some are bidirectional; these always need a mask
    additive: bool  # the model adds its own terms to masks, so it gets masks of "eager", which are added to scores


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
    """The function that makes masks for attn_implementation=`name`. It is like the function of "sdpa", with the
    exceptions that Configured lists.

    It also raises Unsupported, because the implementation can be set in a configuration after the model was built.
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
