"""Draws the text of a random Python program."""

from __future__ import annotations

import random

from tests.fuzz import code_grammar as grammar


class Writer:
    """Draws a program's text. ``writes``: whether tensors are written to in place."""

    def __init__(self, seed: int, writes: bool) -> None:
        self.draw, self.writes, self.count = random.Random(seed), writes, 0
        self.names: dict[str, list[str]] = {
            "v": ["x", "y"], "j": ["m"], "l": ["items", "kept"], "d": ["table"],
        }  # fmt: skip
        self.depth, self.loops = 0, 0

    def program(self, length: int) -> tuple[str, ...]:
        """Statements over ``state, x, w, n, flag, items, table``: ``length``, or more."""
        start = ["global COUNT, double", "m, kept, y = n, [w * 1], w + x.sum()"]
        return (*start, *self.block(length, 0), f"return {self.result()}")

    def result(self) -> str:
        chosen = [self.draw.choice(self.names[k]) for k in ("v", "v", "l", "d", "j")]
        return ", ".join(chosen[: self.draw.randint(1, 5)]) + ","

    def block(self, length: int, nested: int) -> list[str]:
        """Statements whose new names are unknown behind them."""
        known = {kind: list(names) for kind, names in self.names.items()}
        made = [self.statement(nested) for _ in range(length)]
        if nested and self.draw.random() < 0.12:
            made.append(self.fill(self.draw.choice(grammar.RAISES)))
        if self.loops and self.draw.random() < 0.25:
            made.append(f"if {self.expression('c')}:\n    {self.draw.choice(grammar.IN_LOOPS)}")
        if nested:
            self.names = known
        return made

    def statement(self, nested: int) -> str:
        table = grammar.WRITES if self.writes and self.draw.random() < 0.2 else grammar.STATEMENTS
        text = self.draw.choice(table)
        while nested > 2 and "..." in text:
            text = self.draw.choice(table)
        return self.fill(text, nested)

    def fill(self, text: str, nested: int = 0) -> str:
        """The text with every name in its place, and its blocks filled."""
        own: dict[str, str] = {}
        lines, loops, names, inside = [], self.loops, dict(self.names), self.loops
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            if line.strip() != "...":
                lines.append(indent + self.words(line.strip(), own))
                inside = 1 if line.strip().startswith(("for", "while")) else inside
                inside = 0 if "def " in line else loops if line.startswith("else") else inside
                continue
            self.loops = inside
            block = "\n".join(self.block(self.draw.randint(1, 3), nested + 1))
            lines += [indent + inner for inner in block.split("\n")]
        self.loops = loops
        for kind in "vjld":
            new = own.get({"v": "new", "j": "new_i", "l": "new_l", "d": "new_d"}[kind])
            if new:
                self.names[kind] = [*names[kind], new]
        return "\n".join(lines)

    def words(self, line: str, own: dict[str, str]) -> str:
        made, rest = "", line
        while "{" in rest:
            start = rest.index("{")
            made, rest = made + rest[:start], rest[start:]
            if rest[1] == "{":
                made, rest = made + "{", rest[2:]
                continue
            word, rest = rest[1 : rest.index("}")], rest[rest.index("}") + 1 :]
            made += self.word(word, own)
        return (made + rest).replace("}}", "}")

    def word(self, word: str, own: dict[str, str]) -> str:
        if word in "ticldk" and len(word) == 1:
            return self.expression(word)
        if word in ("v", "j"):
            if word not in own or self.draw.random() < 0.3:
                own[word] = self.draw.choice(self.names[word])
            return own[word]
        if word not in own:
            self.count += 1
            own[word] = f"{word}{self.count}"
            if word in ("u", "u2"):
                self.names["v"] = [*self.names["v"], own[word]]
            if word == "u_i":
                self.names["j"] = [*self.names["j"], own[word]]
        return own[word]

    def expression(self, kind: str) -> str:
        """One of that kind, of a few levels."""
        if kind == "k":
            return self.draw.choice(("'a'", "'b'", "'c'"))
        if kind in "ld":
            return self.draw.choice(self.names[kind])
        simple = self.draw.random() < 0.35 + 0.25 * self.depth
        if simple and kind == "t":
            return self.draw.choice(self.names["v"])
        if simple and kind == "i":
            return self.draw.choice([*self.names["j"], "n", "1", "2"])
        if simple and kind == "c" and self.depth:
            return "flag"
        table = {"t": grammar.TENSORS, "i": grammar.INTEGERS, "c": grammar.CONDITIONS}[kind]
        self.depth += 1
        known = dict(self.names)
        made = self.words(self.draw.choice(table), {})
        self.names, self.depth = known, self.depth - 1
        return f"({made})" if kind != "c" else made
