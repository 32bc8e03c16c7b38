"""Python over numbers that are symbols, as text. A hole ``{i}`` is an int, ``{f}`` a float,
``{b}`` a truth value, ``{a}`` any of these: an expression that is drawn from here, in brackets.
"""

from __future__ import annotations

#: What an expression begins with: arguments, sizes and literals.
LEAVES = {
    "i": (
        "n", "k", "x.shape[0]", "x.shape[1]", "x.numel()", "len(x)", "x.dim()", "x.size(0)", "0",
        "1", "2", "3", "-1", "7",
    ),
    "f": ("a", "b", "a", "b", "0.5", "2.0", "-1.5"),
    "b": (
        "n > k", "x.shape[0] > n", "a > b", "n == k", "True", "False", "n % 2 == 0", "a == k",
    ),
}  # fmt: skip
EXPRESSIONS = {
    "i": (
        "{i} + {i}", "{i} - {i}", "{i} * {i}", "{i} // {i}", "{i} % {i}", "{i} ** 2", "-{i}",
        "~{i}", "{i} & {i}", "{i} | {i}", "{i} ^ {i}", "{i} << 2", "{i} >> 1", "abs({i})",
        "max({i}, {i})", "min({i}, {i}, {i})", "int({a})", "round({f})", "sum([{i}, {b}, {i}])",
        "len(range({i}))", "divmod({i}, {i})[1]", "{i} if {b} else {i}", "{b} + {i}", "{b} * {i}",
        "{b} - {b}", "{i}.bit_length()", "math.floor({f})", "math.ceil({f})", "math.gcd({i}, {i})",
        "{i} and {i}", "{i} or {i}", "[{i}, {i}, {i}].index({i})", "({i}, {i}).count({a})",
        "sorted([{i}, {i}, {i}])[2]", "hash({a})", "[10, 20, 30][{i} % 3]", "len('ab' * ({i} % 5))",
        "int(str({i}))", "[*range(0, 9, 1 + {i} % 3)][-1]", "sum(j * {i} for j in range({i} % 4))",
        "len([j for j in range({i} % 6) if j == {a}])", "{1: 5, 2: 6}.get({a}, {i})",
        "pow({i}, 2, 7)", "{i}.__add__(1)", "operator.mul({i}, {i})", "len({{a}, {a}, {i}})",
        "{i}.conjugate()", "(lambda q: q + 1)({i})", "math.prod([{i}, {b}])",
        "math.isqrt(abs({i}))", "math.comb(5, {i} % 5)",
    ),
    "f": (
        "{f} + {f}", "{f} - {i}", "{f} * {f}", "{i} / {i}", "{f} / {f}", "{f} // {i}", "{f} % {i}",
        "-{f}", "abs({f})", "float({a})", "max({f}, {a})", "min({a}, {f})", "round({f}, 1)",
        "{f} ** 2", "{i} ** 0.5", "math.sqrt(abs({f}))", "math.sin({f})", "math.exp(min({f}, 3))",
        "math.log(abs({f}) + 1)", "math.fmod({f}, 3)", "{f} if {b} else {f}",
        "sum([{f}, {i}, {b}])", "{b} * {f}", "{f} and {f}", "math.copysign({f}, {i})",
        "math.fabs({a})", "divmod({f}, {i})[1]", "math.hypot({i}, {f})", "float(f'{{f}:.3f}')",
        "math.floor({f}) + 0.5", "complex({i}, {f}).real", "math.fsum([{f}, {i}])",
        "math.tanh({f})", "math.pow({i}, 2)", "(lambda q: q * 2)({f})", "math.atan2({f}, {i})",
    ),
    "b": (
        "{a} == {a}", "{a} != {a}", "{a} < {a}", "{a} <= {a}", "{a} > {a}", "{a} >= {a}",
        "{b} and {b}", "{b} or {b}", "not {a}", "bool({a})", "{a} in ({a}, {a})",
        "{a} not in [{a}, 1]", "{i} < {a} < {i}", "any([{a}, {a}])", "all(({a}, {a}))",
        "isinstance({a}, int)", "isinstance({a}, float)", "type({a}) is float", "type({a}) is bool",
        "{b} == {a}", "{b} is True", "{a} is None", "({a}, {a}) == ({a}, {a})", "[{a}] < [{a}]",
        "{f}.is_integer()", "{b} & {b}", "{b} ^ {b}", "{b} | {b}", "math.isclose({f}, {f})",
        "str({a}) == '1'", "{a} in {{a}: 1, 2: 3}", "{i} in range({i})", "repr({a}) < repr({a})",
        "callable({a})", "math.isfinite({f})",
        "x.shape == ({i}, {i})", "{a} in x.shape",
    ),
}  # fmt: skip
