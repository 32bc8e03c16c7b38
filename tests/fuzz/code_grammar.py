"""What random Python programs are made of: expressions and statements as text.

``{t}``: a tensor expression, ``{i}``: one of an integer, ``{c}``: a condition, ``{l}``: a list of
tensors, ``{d}``: a dict of tensors, ``{k}``: one of its keys, ``{new}``: a new name, ``{v}`` and
``{j}``: names of a tensor and of an integer that are written to. Tensors hold small whole numbers,
so that nothing is rounded. A statement's lines that end in ``...`` are blocks of further ones.
"""

from __future__ import annotations

TENSORS = (
    "{t} + {t}", "{t} - {t}", "({t} * {t}).clamp(-9, 9)", "{t} * {i}", "{t}.relu()", "-{t}",
    "{t}.flip(0)", "{t}.sum(0)", "{t}.sum()", "{t}[0]", "{t}[-1:]", "{t}.clone()", "{t}.detach()",
    "torch.where({t} > {t}, {t}, {t})", "torch.maximum({t}, {t})", "{t}.amax(-1)", "{t}.t()",
    "({t} if {c} else {t})", "sum({l}, {t})", "torch.stack(list({l})).sum(0)", "{d}[{k}]",
    "{d}.get({k}, {t})", "{l}[{i} % 2]", "{l}[-1]", "double({t})", "double(t={t}, by={i})",
    "pair({t}, {t})[{i} % 2]", "state.scaled({t})", "state({t})", "state.size * {t}",
    "reduce(lambda p, q: p + q, {l}, {t})", "max({l}, key=lambda t: t.dim())", "state.kept + {t}",
    "next((e for e in {l} if e.dim() > {i} % 3), {t})", "(lambda t, by=2: t * by)({t})",
    "{t}.new_zeros(2)", "torch.full_like({t}, {i})", "torch.zeros({i} % 4, 4)", "partial_({t})",
    "{t}.new_tensor([{i}, {i}])", "clamp(*{l})", "clamp(**dict(a={t}, b={t}))",
    "table_of({t})['a']", "Pair({t}, {i}).first",
    "dataclasses.replace(Box({t}), count={i}).doubled", "{t}.add({t}, alpha={i})",
    "[e + {i} for e in {l}][0]", "{{**{d}, 'z': {t}}}['z']", "({new} := {t}) * 2", "broken({t})",
    "({t}).reshape(-1)", "torch.cat([{t}, {t}])", "functools.partial(double, by={i})({t})",
    "state.layer({t})", "state.layer(t={t}, by={i})", "state.layers[{i} % 2]({t})",
    "state.bag[{i} % 3]", "(Vec({t}) + {t}).t", "({i} * Vec({t}) + Vec({t})).t",
    "grown({t}, {i} % 4)", "counted({t})", "State.plain({t})", "state.made({t}).kept",
    "copy.deepcopy({t})", "copy.copy(state).kept + {t}",
    "[lambda t, k=k: t * k for k in range(3)][{i} % 3]({t})",
    "[lambda t: t * k for k in range(3)][0]({t})", "list({t})[0]", "{t}.chunk(2)[0]",
    "torch.stack([row * {i} for row in {t}])", "getattr(state, 'missing', {t})",
    "getattr({t}, 'tag', {t})", "quiet({t})", "list(itertools.chain({l}, [{t}]))[-1]",
    "next(reversed({l}))", "functools.reduce(torch.add, {l}, {t})",
    "sorted({l}, key=lambda t: -t.dim())[0]", "(lambda *a, **k: a[0] + len(k))({t}, a=1, b=2)",
    "choose[{i} % 2]({t})", "{t}.view(*{t}.shape, 1)[..., 0]", "torch.ones({t}.shape[-1:]) * {i}",
    "state.seen + {t}", "({t} @ {t}.t()).clamp(-9, 9)", "torch.arange({i} % 5).sum() + {t}",
    "last(steps({t}, {i} % 4))", "nested({t})({i})", "[*map(double, {l})][0]",
    "dict(zip('ab', {l})).get('a', {t})",
)  # fmt: skip
INTEGERS = (
    "n", "n", "1", "2", "3", "0", "-1", "{i} + {i}", "{i} - {i}", "{i} * 2", "{i} % 3",
    "{i} // {i}", "len({l})", "{t}.dim()", "x.shape[0]", "{t}.shape[-1]", "{t}.numel() % 5",
    "min({i}, {i})", "state.count", "world.COUNT", "len(state.log)", "int(flag)",
    "({i} if {c} else {i})", "int({t}.sum())", "sum(range({i} % 5))", "len({{{i}, {i}}})",
    "abs({i})", "state.size", "[{i}, {i}, {i}].index({i})", "len(f'{{{j}}}')",
    "sum(map(abs, [{i}, {i}]))", "ord('a')", "next(state.numbers)", "state.up()",
    "divmod({i}, 3)[1]", "int({d}.keys() == {{'a', 'b'}})", "max((len(k), k) for k in {d})[0]",
    "len(str({t}.shape))", "{i} << 1", "hash({i}) % 3", "len([e for e in {l} if {c}])",
    "Pair({t}, {i}).second", "state.up(by={i})", "Kind(1).value", "len(state.bag)", "State.shared",
    "counted.calls", "sum(1 for _ in {l})", "int({i} in state.bag)", "{l}.__len__()", "len({t})",
    "len(sorted({d}))", "int('%d' % ({i} % 9))", "[*range({i} % 4), 7][-1]",
    "{i} if ({new} := {i}) else {new}", "(lambda: {i})()", "max({i}, {i}, key=lambda k: -k)",
    "-({i})", "~{i} % 4", "len([*state.bag])", "int(isinstance({t}, (int, torch.Tensor)))",
    "len(f'{{{j}:>3}}')", "{t}.stride(0) % 3", "len({{**{d}}})",
    "next(iter({d}), 'none').count('a')", "int(state.layer.training)", "int(state.layer.total)",
    "state.layer.calls", "getattr(state, 'extra', 4)", "int(State(  ) == state)",
    "len({{k for k in {d}}} | {{'z'}})", "(yielded := [*steps({i}, 3)])[-1] % 5",
    "int(bool(state.bag))", "Kind.ONE.value", "int(Kind.ONE is Kind(1))", "eval_order({i}, {i})",
)  # fmt: skip
CONDITIONS = (
    "flag", "not flag", "{i} > {i}", "{i} == {i}", "0 < {i} <= {i}", "{c} and {c}", "{c} or {c}",
    "{l}", "{k} in {d}", "{t}.shape == {t}.shape", "{t} is {t}", "state.kept is None", "not {c}",
    "isinstance({t}, torch.Tensor)", "{t}.sum() > 0", "bool(({t} > {t}).any())", "x is items[0]",
    "any(t.dim() > 1 for t in {l})", "all(e.dim() for e in {l})", "{t}.requires_grad",
    "hasattr(state, 'extra')", "{i} in (1, 2)", "{l} is items", "{l} == []", "{d}", "{i}",
    "torch.is_grad_enabled()", "callable(state)", "state.log[-1:] == [{i}]", "{t}.dim() == 2",
    "state.bag", "state == {i}", "{i} in state.bag", "type({t}) is torch.Tensor",
    "{t}.is_contiguous()", "'a' < 'b' < {k}", "{l} and {l}[0] is x", "len({l}) > {i}",
    "(lambda: {c})()", "any([{c}, {c}])", "isinstance(state, State) and {c}",
    "state.layer.training", "torch.equal({t}, {t})", "{t}.shape == (2, 4)",
    "getattr(state, 'extra', None)", "not ({c} and {c})", "{i} != {i} != {i}", "bool({t}.dim())",
    "sum(t.dim() for t in {l}) > {i}",
)  # fmt: skip
STATEMENTS = (
    "{new} = {t}", "{new} = {t}", "{new} = {t}", "{v} = {t}", "{v} = {t}", "{j} = {i}",
    "{new_i} = {i}", "{v}, {new} = {t}, {t}", "{j}, *{new_l} = {i}, {t}, {t}",
    "{new_l} = [{t}, {t}]", "{new_l} = [*{l}, {t}]", "{new_l} = [e * 2 for e in {l} if {c}]",
    "{new_l} = {l}[1:]", "{l}.append({t})", "{l}.append({t})", "{l}.pop()", "{l}.insert(0, {t})",
    "{l}[0] = {t}", "{l}.extend({l}[:2])", "{l}.reverse()", "{l}.sort(key=lambda t: t.dim())",
    "del {l}[0]", "{l} += [{t}]", "{d}[{k}] = {t}", "{d}[{k}] = {t}", "{d}.pop({k}, None)",
    "del {d}[{k}]", "{d}.update(c={t})", "{d}.setdefault({k}, {t})", "{d}.clear()",
    "{new_d} = dict({d}, a={t})", "{new_d} = {{k: v * {i} for k, v in {d}.items()}}",
    "state.count += {i} % 4", "state.count = {i} % 5", "state.kept = {t}.detach()",
    "state.kept = None", "state.extra = {i}", "del state.extra", "state.log.append({i})",
    "state.log.append(str({i}))", "state.size = {i} % 3",
    "state.log.append(f'{{{j}}} {{{v}.shape}}')", "setattr(state, 'size', {i} % 4)",
    "{j} += {i} % 5", "world.COUNT += 1", "COUNT = {i} % 7", "jitney.graph_break()",
    "state.log.append({t}.tolist())", "assert {c}, 'said'", "state.child.append({t}.detach())",
    "state.note({t})", "{v} = -{v}", "state.numbers = itertools.count({i} % 3)",
    "state.__dict__.update(size={i} % 3)", "print_({t})", "if {c}:\n    ...",
    "if {c}:\n    ...\nelse:\n    ...", "if {c}:\n    ...\nelif {c}:\n    ...",
    "for {u} in {l}[:4]:\n    ...", "for {u_i} in range({i} % 4):\n    ...",
    "for {u_i}, {u} in enumerate({l}[:3]):\n    ...\nelse:\n    ...",
    "for {u_k}, {u} in list({d}.items()):\n    ...", "for {u}, {u2} in zip({l}[:3], {l}):\n    ...",
    "for {u} in parts({t}, state.log):\n    ...", "for {u} in list({d}.values())[:2]:\n    ...",
    "{left} = 3\nwhile {left} > 0 and ({c}):\n    {left} -= 1\n    ...",
    "try:\n    ...\nexcept (ValueError, ZeroDivisionError) as {e}:\n"
    "    state.log.append(str({e}))\n    ...",
    "try:\n    ...\nexcept KeyError:\n    ...\nelse:\n    ...",
    "try:\n    ...\nfinally:\n    state.log.append('finally')\n    ...",
    "try:\n    ...\nexcept Exception as {e}:\n    state.log.append(type({e}).__name__)\n"
    "    ...\nfinally:\n    ...",
    "with Note(state.log, {i}):\n    ...", "with Note(state.log, {i}, Wrong) as {new_i}:\n    ...",
    "with torch.no_grad():\n    ...", "with contextlib.suppress(Wrong, KeyError):\n    ...",
    "with noted(state.log, {i}):\n    ...",
    "with Note(state.log, 1), noted(state.log, 2):\n    ...",
    "def {f}(t, by={i}):\n    nonlocal m\n    m += 1\n    ...\n    return t * by\n{v} = {f}({t})",
    "def {f}(t):\n    for s in t:\n        ...\n        yield s * {i}\n"
    "{new_l} = list({f}({l}[:3]))",
    "match {i}:\n    case 1 | 2:\n        ...\n    case {u_i} if {u_i} > 3:\n        ...\n"
    "    case _:\n        ...",
    "match {l}:\n    case [{u}, *_]:\n        ...\n    case []:\n        ...",
    "state.bag.add({i} % 5)", "state.bag[{i} % 3] = {t}.detach()", "state.bag += {i}",
    "State.shared = {i} % 5", "del state.bag[{i} % 3]", "state.layer.train(bool({c}))",
    "state.layer.note = {i}", "{v}.tag = {t}", "state.layers.append(Layer({i} % 3))",
    "state.layer.by = {i} % 3", "{l}[1:] = [{t}]", "del {l}[1:]",
    "{d} |= {{'z': {t}}}", "{l}.remove({l}[0])", "state.log.append(sorted({d}))",
    "state.log.append(','.join([*{d}, str({i})]))", "state.log.append(repr({i}))",
    "{new}, {new2} = {t}.chunk(2) if {t}.dim() else ({t}, {t})", "{v} = {v} + {i} if {c} else {t}",
    "state.log.append([*steps({i}, 2)])", "for {u} in {t}:\n    ...",
    "for {u} in reversed({l}):\n    ...", "for {u_i} in sorted({{{i}, {i}}}):\n    ...",
    "for {u} in parts({t}, state.log):\n    ...\n    break",
    "{g} = parts({t}, state.log)\n{v} = next({g}, {v})\n...\n{g}.close()",
    "{g} = talk(state.log)\nnext({g})\nstate.log.append({g}.send({i}))\n...\n"
    "state.log.append({g}.send({i}))",
    "with torch.set_grad_enabled({c}):\n    ...",
    "try:\n    ...\n    raise Wrong({i})\nexcept Wrong as {e}:\n"
    "    state.log.append({e}.args)\n    ...",
    "try:\n    {l}[{i} + 9]\nexcept IndexError as {e}:\n    state.log.append(str({e}))\n    ...",
    "try:\n    try:\n        ...\n    finally:\n        ...\n"
    "except (RuntimeError, TypeError) as {e}:\n    state.log.append(type({e}).__name__)",
    "try:\n    {v} = {v} + torch.ones(7)\nexcept RuntimeError:\n    ...",
    "for {u_i} in range(3):\n    try:\n        ...\n        continue\n    finally:\n"
    "        state.log.append({u_i})",
    "def {f}():\n    try:\n        ...\n        return {t}\n    finally:\n"
    "        state.log.append('done')\n{v} = {f}()",
    "with Note(state.log, {i}, Wrong):\n    ...\n    raise Wrong({i})",
    "def {f}(k, t={t}):\n    return t if k <= 0 else {f}(k - 1, t + k)\n{v} = {f}({i} % 4)",
    "@functools.wraps(double)\ndef {f}(*args, **more):\n    ...\n"
    "    return double(*args, **more)\n{v} = {f}({t}, by={i})",
    "{f} = [lambda t, k=k: t + k * {i} for k in range(3)]\nfor {g} in {f}:\n"
    "    {v} = {g}({v})\n    ...",
    "{new} = {v}; {v} = {t}; del {new}", "{j}, {v} = {i}, {t}", "{new_i} = {new_j} = {i}",
    "match {t}.dim(), {i}:\n    case 2, _:\n        ...\n    case (1, {u_i}) | ({u_i}, 1):\n"
    "        ...",
    "match state:\n    case State(count=1):\n        ...\n    case State(kept=None):\n        ...",
    "match {d}:\n    case {{'a': {u}}}:\n        ...\n    case _:\n        ...",
    "assert state.log is not None",
    "state.seen = state.seen + 1", "state.layer.total += 1",
    "double = functools.partial(grown, n={i} % 3)",
    "state.log.append((lambda *a: len(a))(*{l}))",
    "state.layer.register_buffer('more', {t}.detach())",
    "state.child = [*state.child[-2:], {t}.detach()]",
)  # fmt: skip
RAISES = (
    "raise Wrong({i})", "raise ValueError({i}, 'two')", "raise Wrong({i}) from KeyError('k')",
    "raise", "return {t}", "raise StopIteration", "raise KeyError({k}) from None", "return",
    "return {t}, {i}",
)  # fmt: skip
IN_LOOPS = (
    "break", "continue", "continue",
)  # fmt: skip
WRITES = (
    "{v}.add_({i})", "{v}.mul_(2).clamp_(-9, 9)", "{v}[0] = {i}", "{v}[0] = {t}", "{v} += {t}",
    "{v} -= 1", "{v}[-1:].zero_()", "{v}.copy_({t})", "x.add_(1)", "{l}[0].neg_()",
    "{v}[..., 0] += 1", "state.kept = {v}", "state.child.append({v})", "{d}[{k}].add_({i})",
    "{l}[-1] += 1",
)  # fmt: skip
