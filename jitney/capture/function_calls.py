"""Python functions that are not simply interpreted: who takes a call of each."""

from __future__ import annotations

import torch

from jitney import torch_api
from jitney.capture import (
    answer_calls,
    autograd_functions,
    break_at_calls,
    call_natively,
    checkpoints,
    collectives,
    copies,
    interpret_instead,
    inverse_stft,
    jacobians,
    tensor_wrappers,
    transforms,
    triton_launches,
    validation,
)
from jitney.capture.builtin_calls import Handler, builtin
from jitney.capture.interpret_instead import interpret, interpret_resumably, interpreting
from jitney.torch_api import flex_attention, names

HANDLERS: dict[str, Handler] = {
    names.PATCHED_MODULE_INIT: interpret_instead.call_module_init,
    "torch.cond": interpret_instead.call_cond,
    names.VMAP: transforms.call_vmap,
    names.GRAD_AND_VALUE: transforms.call_grad,
    names.JVP: jacobians.call_jvp,
    names.VJP: jacobians.call_vjp,
    names.PULL: jacobians.call_pull,
    **dict.fromkeys((*names.TRANSFORMS, *names.BREAK_SETTING), interpret),
    "jitney.capture.polyfills.functions_off": tensor_wrappers.count_off,
    names.NESTED_REGION: interpret_resumably,
    names.BREAK_SETTING_SCOPE: interpret_instead.enter_settings,
    **dict.fromkeys(names.GRAPH_MODULE_CALLS, interpret_resumably),
    names.NESTED_CALL: interpret_instead.call_region,
    **dict.fromkeys(("torch.jit.annotate", names.JIT_UNWRAP, names.INVERSE_STFT), interpret),
    "torch.nn.attention.sdpa_kernel": interpret_instead.call_attention_kinds,
    names.COMPILED_MODULE_GETATTR: interpret,
    **dict.fromkeys(
        ("torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling"),
        answer_calls.answer_compiling,
    ),
    "torch.get_default_device": answer_calls.answer_default_device,
    "torch.distributed.distributed_c10d.is_initialized": answer_calls.answer_process_group,
    **collectives.HANDLERS,
    "torch.backends.mha.get_fastpath_enabled": answer_calls.answer_attention_fastpath,
    "torch.utils.checkpoint.checkpoint": checkpoints.call_checkpoint,
    "torch.autograd.function.Function.apply": autograd_functions.apply,
    "functools.wraps": call_natively.call_wraps,
    "functools.update_wrapper": call_natively.call_update_wrapper,
    "copy.copy": copies.call_copy,
    **triton_launches.HANDLERS,
    **dict.fromkeys(names.CHECKS_OF_TENSORS, validation.call_check),
    "copy.deepcopy": copies.call_deepcopy,
    names.MASKED_FILL: interpreting(torch_api.fill_masked_out, torch_api.is_masked_tensor),
    "torch.compile": interpret_instead.call_compile,
    names.FLEX_ATTENTION: interpreting(flex_attention.attend),
    "torch.nn.attention.flex_attention.create_mask": interpreting(flex_attention.create_mask),
    "jitney.torch_api.flex_attention.call_of_positions": interpret_instead.call_of_positions,
    "torch.fx.traceback.annotate": interpreting(torch_api.without_notes),
    names.GRAPH_BREAK: break_at_calls.break_when_told,
    **dict.fromkeys(names.STEPS_BY_VALUES, break_at_calls.break_unless_capturable),
    names.GROUP_TENSORS: interpreting(torch_api.group_tensors),
    names.NUMBER_OF_STEP: interpreting(torch_api.number_of_step),
}

builtin(torch_api.NATIVE_ATTENTION)(interpreting(torch_api.attend_to_itself))
builtin(torch.istft)(inverse_stft.call_inverse_stft)
