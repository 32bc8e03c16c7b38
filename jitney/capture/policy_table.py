"""The policy as data: what is called for real, left out, put off, or refused; and why.

Keys are "module.qualname". A test resolves every row, so that a misspelt one cannot live.
"""

from __future__ import annotations

from jitney.torch_api import names

# C functions that depend on their arguments alone and change nothing (or only the containers
# they are given, which are the frame's own).
PURE_MODULES = {
    "math": "arithmetic",
    "cmath": "arithmetic",
    "_operator": "operators on values that were checked",
    "itertools": "iterator constructors",
    "_collections": "containers",
    "_struct": "packing of bytes",
    "_bisect": "searches in lists",
    "_heapq": "lists as heaps",
    "_string": "parsing of format strings",
    "_abc": "class registries, read",
    "binascii": "conversions",
    "_json": "conversions",
    "_stat": "constants",
    "_datetime": "value types",
    "_decimal": "value types",
    "_sre": "matching of constants",
    "_functools": "partial, reduce",
    "unicodedata": "tables",
    "_typing": "markers",
    "_contextvars": "copies",
}
PURE_BUILTINS = frozenset(
    """abs ascii bin chr divmod format hex oct ord pow repr round sorted sum
    callable hash issubclass any all min max""".split()
)
PURE_OBJECT = frozenset(
    "__eq__ __ne__ __hash__ __repr__ __str__ __format__ __init__ __lt__ __le__ __gt__ __ge__ "
    "__sizeof__ __init_subclass__ __subclasshook__".split()
)
IMPURE = frozenset(
    """_operator.attrgetter _operator.methodcaller _abc._abc_register
    _abc._reset_registry datetime.date.today
    datetime.datetime.today datetime.datetime.now datetime.datetime.utcnow
    datetime.date.fromtimestamp datetime.datetime.fromtimestamp datetime.datetime.timestamp
    datetime.datetime.astimezone""".split()
)

# Types whose C methods only touch the object itself.
PURE_TYPES = (
    "builtins.list builtins.dict builtins.set builtins.frozenset builtins.tuple builtins.str "
    "builtins.bytes builtins.int builtins.float builtins.complex builtins.bool "
    "builtins.range builtins.slice builtins.dict_keys builtins.dict_values builtins.dict_items "
    "collections.deque collections.OrderedDict collections.defaultdict builtins.mappingproxy "
    "builtins.object builtins.BaseException builtins.Exception builtins.code builtins.property "
    "builtins.function builtins.type builtins.super builtins.method builtins.NoneType "
    "builtins.cell builtins.classmethod builtins.staticmethod types.GenericAlias types.UnionType "
    "typing.Union "
    "re.Pattern re.Match builtins.odict_keys builtins.odict_values builtins.odict_items "
    "torch.Size torch.dtype torch.device torch.finfo torch.iinfo builtins.ellipsis "
    "builtins.list_iterator builtins.tuple_iterator builtins.dict_keyiterator builtins.enumerate "
    "builtins.dict_valueiterator builtins.dict_itemiterator builtins.zip builtins.map "
    "builtins.range_iterator builtins.reversed builtins.list_reverseiterator builtins.filter "
    "_operator.itemgetter datetime.timedelta datetime.date datetime.datetime"
).split()

# Classes constructed natively: values and containers.
NATIVE_CLASSES = frozenset(
    """builtins.bytes builtins.bytearray builtins.complex builtins.slice
    builtins.range builtins.property builtins.staticmethod
    builtins.classmethod builtins.object torch.Size torch.device torch.dtype torch.finfo
    torch.iinfo functools.partial
    _operator.itemgetter itertools.count itertools.cycle
    itertools.repeat itertools.chain itertools.islice itertools.starmap itertools.takewhile
    itertools.dropwhile itertools.accumulate itertools.product itertools.combinations
    itertools.permutations itertools.zip_longest itertools.pairwise itertools.groupby
    itertools.combinations_with_replacement itertools.compress itertools.filterfalse
    types.MethodType types.SimpleNamespace types.MappingProxyType types.CellType builtins.method
    operator.itemgetter operator.attrgetter operator.methodcaller
    types.GenericAlias builtins.mappingproxy types.NoneType builtins.NoneType
    datetime.timedelta datetime.date datetime.datetime decimal.Decimal fractions.Fraction
    builtins.function builtins.cell""".split()
)

# Python functions that run for real on what they are given: pure, and slow or hard to interpret.
NATIVE_FUNCTIONS = {
    "inspect.signature": "reads a signature",
    "inspect.isfunction": "a type test",
    "inspect.ismethod": "a type test",
    "inspect.isclass": "a type test",
    "inspect.getfullargspec": "reads a signature",
    "inspect.unwrap": "follows __wrapped__",
    "typing.get_type_hints": "reads annotations",
    "typing.get_origin": "reads a type",
    "typing.get_args": "reads a type",
    "typing.cast": "nothing",
    "dataclasses.fields": "reads a class",
    "dataclasses.is_dataclass": "reads a class",
    "re.compile": "cached by pattern",
    "re._compile": "cached by pattern",
    "re.match": "matching of constants",
    "re.search": "matching of constants",
    "re.fullmatch": "matching of constants",
    "re.sub": "matching of constants",
    "re.split": "matching of constants",
    "re.findall": "matching of constants",
    "re.escape": "strings",
    "torch.broadcast_shapes": "sizes",
    "torch.functional.broadcast_shapes": "sizes",
    "torch.overrides.is_tensor_like": "a type test",
    "importlib.util.find_spec": "installed packages do not change",
    "importlib.metadata.version": "installed packages do not change",
    "transformers.utils.import_utils.is_torch_available": "installed packages do not change",
    "transformers.utils.import_utils.is_torch_greater_or_equal": "installed packages",
    "transformers.utils.import_utils.is_flash_attn_2_available": "installed packages",
    "transformers.utils.import_utils.is_torch_xpu_available": "devices of the process",
    "transformers.utils.import_utils.is_torch_npu_available": "devices of the process",
    "transformers.utils.import_utils.is_torch_less_or_equal": "installed packages",
    "torch.cuda.is_available": "devices of the process",
    "torch.cuda.device_count": "devices of the process",
    "torch.xpu.is_available": "devices of the process",
    "torch.mps.is_available": "devices of the process",
    "torch.backends.mps.is_available": "devices of the process",
    "torch.amp.autocast_mode.is_autocast_available": "devices of the process",
    "torch.distributed.is_available": "how torch was built",
    "torch.cpu.get_capabilities": "the processor",
    "enum.Enum.__hash__": "by name",
    "enum.EnumType.__iter__": "members do not change",
    "enum.EnumType.__len__": "members do not change",
    "enum.EnumType.__contains__": "members do not change",
    "enum.EnumType.__getitem__": "members do not change",
    "copy._copy_immutable": "the object itself",
    **names.NATIVE_FUNCTIONS,
}

# Functions of torch's that a mode may handle whole, but that call back what they are given.
NOT_LEAVES = frozenset(["triplet_margin_with_distance_loss"])
# Functions of torch's that do not tell a mode all they are given: a weight, `ambiguity_check`,
# `out`. A default device is a mode, and loses it in eager too.
FORGETFUL = frozenset(["l1_loss", "dim_order", "chain_matmul"])

# Names by which Python code looks at the frames that called it.
LOOKS_AT_CALLERS = frozenset(["_getframe", "_getframemodulename", "currentframe"])
#: Globals that libraries read to know what to collect for their callers, and compute nothing from.
COLLECTORS = frozenset(["transformers.utils.output_capturing._active_collector"])

# Packages that change how everything below them runs, or talk to the outside: never inlined.
EAGER_MODULES = (
    *names.EAGER_PACKAGES,
    "torch.fx.",
    "torch.jit.",
    "torch.onnx.",
    "torch.export.",
    "torch.profiler.",
    "torch.autograd.profiler.",
    "torch.autograd.functional.",
    "torch.autograd.forward_ad.",
    "torch.multiprocessing.",
    "torch.distributed.",
    "torch.random.",
    "torch.func.",
    "jitney.api.compile",
    "jitney.api.options",
    "jitney.api.set_stance.",
    "jitney.diagnostics.",
    "threading.",
    "multiprocessing.",
    "subprocess.",
    "random.",
    "numpy.",
    "triton.",
)

# What is inlined of these: wrappers of what is captured.
INLINED = (*names.CALLED_BY_EXPORTED, "torch.distributed.nn.functional.")

# Functions that answer a constant during capture.
ANSWERS = {
    "jitney.api.is_compiling": True,
    "jitney.api.is_dynamo_compiling": True,
    "torch.compiler.is_exporting": False,
    "torch.compiler.cudagraph_mark_step_begin": None,
    "torch.jit.is_scripting": False,
    "torch.jit.is_tracing": False,
    "torch.onnx.is_in_onnx_export": False,
    "transformers.utils.import_utils.is_torchdynamo_exporting": False,
    "transformers.utils.import_utils.is_jit_tracing": False,
    **names.ANSWERS,
}

# Functions by which a library asks whether what it does next is compiled.
QUESTIONS = {
    "transformers.utils.import_utils.is_torchdynamo_compiling",
    "transformers.utils.import_utils.is_tracing",
}

# Functions that change a module once, for calls to come, and the attribute that then says so: until
# then they run eager as a whole.
INSTALLING = {
    "transformers.utils.output_capturing.maybe_install_capturing_hooks": (
        "_output_capturing_hooks_installed"
    ),
}

# What a library asks of GPUs, mostly of the current one.
OF_GPUS = frozenset(
    f"torch.cuda.{name}"
    for name in """current_device get_device_properties get_device_capability get_device_name
    is_bf16_supported is_tf32_supported is_initialized""".split()
)

# Calls put off until the graph has run.
DEFERRED = {
    "logging.Logger.debug": "logging",
    "logging.Logger.info": "logging",
    "logging.Logger.warning": "logging",
    "logging.Logger.error": "logging",
    "logging.Logger.critical": "logging",
    "logging.Logger.exception": "logging",
    "logging.Logger.log": "logging",
    "transformers.utils.logging.warning_once": "logging",
    "transformers.utils.logging.info_once": "logging",
    "transformers.utils.logging.warning_advice": "logging",
}

# Python functions that must not be inlined.
BREAKS = {
    "jitney.api.graph_break": ("graph_break", "jitney.graph_break() is called"),
    "torch.random.manual_seed": ("rng", "the random seed is set"),
    "torch.random.seed": ("rng", "the random seed is set"),
    "torch.random.set_rng_state": ("rng", "the random state is set"),
    "torch.random.get_rng_state": ("rng", "the random state is read"),
    "torch.random.initial_seed": ("rng", "the random seed is read"),
    "torch.random.fork_rng": ("rng", "the random state is forked"),
    "torch.cuda.random.manual_seed": ("rng", "the random seed is set"),
    "torch.cuda.random.manual_seed_all": ("rng", "the random seed is set"),
    "torch.autograd.backward": ("backward", "backward is called"),
    "torch.autograd.grad": ("backward", "autograd.grad is called"),
    "torch.serialization.save": ("io", "torch.save is called"),
    "torch.serialization.load": ("io", "torch.load is called"),
    "logging.Filterer.addFilter": ("logging", "a filter of records is added"),
    "logging.Filterer.removeFilter": ("logging", "a filter of records is removed"),
    "logging.setLogRecordFactory": ("logging", "the class of records is set"),
    "collections.namedtuple": ("class-statement", "a class is made, for the module of its caller"),
    "torch.set_default_device": ("default-device", "the default device is set"),
    **names.BREAKS,
}
