"""Functions of torch's without a public name, as "module.qualname": what capture does with each.

`capture/policy_table`, `torch_calls`, `state` and `function_calls` hold the rows of public names
beside these; a test resolves every row.
"""

from __future__ import annotations

# Modules of C functions whose calls are ops, and of Python functions that modes handle whole.
OP_PACKAGES = (
    "torch._C._nn.",
    "torch._C._linalg.",
    "torch._C._fft.",
    "torch._C._special.",
    "torch._C._nested.",
    "torch._C._sparse.",
)
TENSOR_METHODS = "torch._tensor"
C_PACKAGE = "torch._C."

# Packages that change how everything below them runs.
EAGER_PACKAGES = (
    "torch._functorch.",
    "torch._dynamo.",
    "torch._inductor.",
    "torch._higher_order_ops.",
    "torch._subclasses.",
)

# C functions that make no tensor and only look.
LOOKS = frozenset(
    f"torch._C.{name}"
    for name in """_get_tracing_state _is_tracing _is_torch_function_enabled _log_api_usage_once
    _are_functorch_transforms_active _get_deterministic_algorithms _cuda_getDeviceCount
    _is_any_autocast_enabled _is_autocast_available _get_default_device
    _get_privateuse1_backend_name _is_default_mobile_cpu_allocator_set""".split()
)

# C functions without arguments that read what the program may set: what they say is guarded.
SETTINGS = frozenset(
    f"torch._C._get_{name}"
    for name in """cudnn_enabled cudnn_benchmark cudnn_deterministic cudnn_allow_tf32
    flash_sdp_enabled math_sdp_enabled mem_efficient_sdp_enabled cudnn_sdp_enabled
    overrideable_sdp_enabled sdp_priority_order
    cublas_allow_tf32 onednn_allow_tf32 float32_matmul_precision mkldnn_enabled
    deterministic_algorithms_warn_only""".split()
)

# As these, of the names that users know.
HAS_PROCESS_GROUP = "torch.distributed.is_initialized"

# What a `STATE` guard calls the facts of the process group of all processes.
DEFAULT_GROUP = "default_group"

# Reads whether torch functions ask the classes of tensors what they make of them.
FUNCTIONS_ON = "torch._C._is_torch_function_enabled"

# C functions of one argument that change what one of the `SETTINGS` reads: its name.
SETTERS = {
    "torch._C._set_sdp_priority_order": "torch._C._get_sdp_priority_order",
    **{
        f"torch._C._set_sdp_use_{kind}": f"torch._C._get_{kind}_sdp_enabled"
        for kind in "flash math mem_efficient cudnn overrideable".split()
    },
}

# Whether arguments override torch functions: to C it seems so while our own mode is on.
OVERRIDE_TEST = "torch._C._has_torch_function"  # of one iterable; the others take arguments
OVERRIDE_TESTS = frozenset((OVERRIDE_TEST, f"{OVERRIDE_TEST}_unary", f"{OVERRIDE_TEST}_variadic"))

# C functions that answer a constant: they would see our own mode.
C_ANSWERS = {
    "torch._C._is_torch_function_mode_enabled": False,
    "torch._C._functorch.peek_interpreter_stack": None,
    "torch._C._functorch.maybe_current_level": None,
    "torch._C._len_torch_function_stack": 0,
    "torch._C._len_torch_dispatch_stack": 0,
}

# Python functions that answer a constant during capture.
ANSWERS = {
    "torch._dynamo.decorators.mark_static": None,  # inside compiled code: a hint
    "torch.fx.experimental.symbolic_shapes.has_free_unbacked_symbols": False,  # sizes have hints
    "torch._utils.is_compiling": True,
    "torch._dynamo.external_utils.is_compiling": True,
    "torch._jit_internal.is_scripting": False,
    "torch.jit._trace.is_tracing": False,
}

# Python functions that run for real.
NATIVE_FUNCTIONS = {
    "torch._utils._get_available_device_type": "devices of the process",
    "torch.fx.experimental.symbolic_shapes.expect_true": "what torch._check is told is assumed",
    "torch.fx.experimental.symbolic_shapes._advise_is_size": "nothing of a number that is known",
    "torch.fx.experimental.symbolic_shapes._advise_is_bounded": "nothing of a known number",
}

# Checks that every element of a tensor is true.
CHECKS_OF_TENSORS = ("torch._check_tensor_all", "torch._check_tensor_all_with")

# Python functions that break the graph: kind, reason.
BREAKS = {
    "torch._vmap_internals.vmap": ("functorch", "vmap is called"),
    "torch._functorch.apis.vmap": ("functorch", "vmap is called"),
    "torch._functorch.apis.grad": ("functorch", "grad is called"),
}

# Functions that capture treats each in its own way.
SET_GRAD_ENABLED = "torch._C._set_grad_enabled"
# C functions that change modes: nodes of graphs, with those of `SETTERS`.
MODE_CHANGES = (
    SET_GRAD_ENABLED,
    "torch.set_autocast_enabled",
    "torch.set_autocast_dtype",
    "torch.set_autocast_cache_enabled",
    "torch.autocast_increment_nesting",
    "torch.autocast_decrement_nesting",
    "torch.clear_autocast_cache",
)
COMPILED_MODULE_GETATTR = "torch._dynamo.eval_frame.OptimizedModule.__getattr__"
VMAP = "torch._functorch.vmap.vmap_impl"
GRAD_AND_VALUE = "torch._functorch.eager_transforms.grad_and_value_impl"
JVP, VJP = "torch.func.jvp", "torch.func.vjp"
PULL = "torch._functorch.eager_transforms._vjp_with_argnums.<locals>.wrapper"
#: Functions around these that are interpreted as they are.
TRANSFORMS = (
    "torch.func.vmap",
    "torch.func.grad",
    "torch.func.grad_and_value",
    "torch.func.functional_call",
    "torch._functorch.functional_call.functional_call.<locals>.<genexpr>",
    "torch.func.jacrev",
    "torch.func.jacfwd",
    "torch.func.hessian",
    "torch._functorch.apis.vmap.<locals>.wrapped",
    "torch._functorch.apis.grad.<locals>.wrapper",
    "torch._functorch.apis.grad_and_value.<locals>.wrapper",
    "torch._functorch.apis._wraps_without_dynamo_attrs",
    "torch._functorch.apis._wraps_without_dynamo_attrs.<locals>.inner",
    "torch._functorch.vmap._check_randomness_arg",
    "torch._functorch.eager_transforms.grad_impl",
)
#: ``torch._dynamo.error_on_graph_break``, as a scope and as a decorator.
BREAK_SETTING = (
    "torch._dynamo.decorators.error_on_graph_break",
    "torch._dynamo.decorators.ErrorOnGraphBreakDecoratorContextManager.__init__",
    "torch._dynamo.decorators.ErrorOnGraphBreakDecoratorContextManager.__enter__",
    "torch._dynamo.decorators.ErrorOnGraphBreakDecoratorContextManager.__exit__",
    "torch._dynamo.external_utils.wrap_dunder_call_ctx_manager",
    "torch._dynamo.utils._get_error_on_graph_break",
    "torch._dynamo.utils._set_error_on_graph_break",
)
BREAK_SETTING_SCOPE = "torch._dynamo.external_utils.wrap_dunder_call_ctx_manager.<locals>.inner"
#: What ``torch.compiler.nested_compile_region`` makes of a function, and what that calls.
_REGIONS = "torch._higher_order_ops.invoke_subgraph"
NESTED_REGION = f"{_REGIONS}.mark_compile_region.<locals>.wrap.<locals>.inner"
NESTED_CALL = f"{_REGIONS}.invoke_subgraph_placeholder"
JIT_UNWRAP = "torch.jit._script._unwrap_optional"
# What `torch.fx.GraphModule` puts in place of a class's ``__call__``, and what that calls.
GRAPH_MODULE_CALLS = (
    "torch.fx.graph_module.GraphModule.recompile.<locals>.call_wrapped",
    "torch.fx.graph_module._WrappedCall.__call__",
)
# What modules made of exported programs call, by how its names begin: it looks at the structure of
# the arguments.
CALLED_BY_EXPORTED = (
    "torch.export._tree_utils.",
    "torch.export._unlift._check_input",
    "torch.export._unlift._create_stateful_graph_module.<locals>.<lambda>",
    "torch.export._unlift.eq_spec",
    "torch.fx._pytree.",
)
CHECKS_EXPORTED = "torch.export._unlift._check_input_constraints_pre_hook"
GRAPH_BREAK = "torch._dynamo.decorators.graph_break"
GRAPH_BREAK_REASON = "torch._dynamo.graph_break() is called"
COMPILES_ITSELF = "/torch/nn/attention/flex_attention.py"
FLEX_ATTENTION = "torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__"
INVERSE_STFT = "torch._tensor.Tensor.istft"
MASKED_FILL = "torch.masked._ops._combine_input_and_mask"
# Steps of optimizers that read values on their way: counts, whether lines were searched far enough.
STEPS_BY_VALUES = (
    "torch.optim._adafactor.Adafactor.step",
    "torch.optim.asgd.ASGD.step",
    "torch.optim.lbfgs.LBFGS.step",
    "torch.optim.radam.RAdam.step",
)
GROUP_TENSORS = "torch.utils._foreach_utils._group_tensors_by_device_and_dtype"
NUMBER_OF_STEP = "torch.optim.optimizer._get_value"
PATCHED_MODULE_INIT = (
    "torch._dynamo.mutation_guard.install_generation_tagging_init.<locals>.patched_init"
)
