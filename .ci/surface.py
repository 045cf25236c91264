#!/usr/bin/env python3
"""Builds the documentation, and compares the public items and features of the library with .ci/surface.txt, so that
reviewers see each change of them. `.ci/surface.py --update` writes the list.

rustdoc describes the items as JSON, in a format that is not stable: a newer Rust may have another FORMAT. Each version
of the crate public-api reads one format too, and takes 13 s of processor time to build; this script takes 0.5 s.

Cargo calls this file in place of rustdoc. It calls rustdoc as Cargo asks, and for the library a second time, for the
JSON. So the dependencies are only built once: with RUSTC_BOOTSTRAP, which the JSON needs, in its own environment, or
for a single package, Cargo would build them again."""

import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
CRATE, LIST, FORMAT = "leasehold", ROOT / ".ci/surface.txt", 57  # Rust 1.95
# Other crates whose items may be in the list. The client of a store must never be.
FOREIGN = {"alloc", "bytes", "core", "futures_core", "serde_core", "std", "tokio_util", "utoipa"}
AUTOMATIC = {"Send", "Sync", "Unpin"}  # Only types that lack them are listed.
# Methods of async types that have no counterpart in leasehold::blocking, which says why.
ONLY_ASYNC = {"Guard::cancellation", "Guard::renewed", "Leadership::cancellation", "Locks::in_order"}
DERIVED = {"ComposeSchema", "StructuralPartialEq"}  # They come with another trait.


class Surface:
    def __init__(self, described):
        self.index, self.paths = described["index"], described["paths"]
        self.names, self.lines, self.foreign = {}, set(), set()
        found = [(described["root"], ())]
        for id, path in found:  # Breadth first: an item has the shortest of its paths.
            item = self.index[f"{id}"]
            if id in self.names:
                self.lines.add((path, 0, f"pub use {CRATE}::{'::'.join(path)} as {self.names[id]}"))
                continue
            self.names[id] = "::".join(path)
            for child in item["inner"].get("module", {}).get("items", []):
                used = self.index[f"{child}"]["inner"].get("use", {"id": child, "name": self.index[f"{child}"]["name"]})
                assert f"{used['id']}" in self.index, f"`pub use {used['source']}` is of another crate"
                found.append((used["id"], (*path, used["name"])))
        for id, name in self.names.items():
            self.add(self.index[f"{id}"], tuple(name.split("::")) if name else ())
        for item in self.index.values():
            if "impl" in item["inner"]:
                self.add_implementation(item["inner"]["impl"])

    def add(self, item, path, parent="module"):
        kind, it = next(iter(item["inner"].items()))
        attributes = ["non_exhaustive"] * ("non_exhaustive" in item["attrs"])
        attributes += ["must_use"] * any("must_use" in attribute for attribute in item["attrs"])
        attributes += ["deprecated"] * bool(item["deprecation"])
        words = [f"#[{attribute}]" for attribute in attributes] + ["pub"] * (parent not in ("enum", "trait"))
        parts, text = [], self.generics(it) if kind in ("enum", "struct", "trait", "type_alias") else ""
        if kind in ("struct", "variant"):
            shape = {} if isinstance(it["kind"], str) else it["kind"]
            fields = shape.get("plain", shape.get("struct", {"fields": shape.get("tuple", [])}))
            parts = [field for field in fields["fields"] if field is not None]
            private = fields.get("has_stripped_fields") or len(parts) < len(fields["fields"])
            text += " { private fields }" if private else ""
        elif kind in ("enum", "trait"):
            parts, text = it["variants" if kind == "enum" else "items"], text + self.bounds(it.get("bounds", []), ": ")
        elif kind == "function":
            kind, text = "fn", self.signature(it, words)
            text += " { default }" if parent == "trait" and it["has_body"] else ""
        elif kind == "struct_field":
            kind, text = "field", f": {self.type(it)}"
        elif kind in ("constant", "assoc_const"):
            value = it.get("const", it).get("value")
            kind, text = "const", f": {self.type(it['type'])}" + (f" = {value}" if value else "")
        elif kind in ("type_alias", "assoc_type"):
            text += self.bounds(it.get("bounds", []), ": ") + (f" = {self.type(it['type'])}" if it["type"] else "")
            kind = "type"
        else:
            assert kind in ("module", "variant"), f"this script does not know a {kind}"
        self.lines.add((path, 0, f"{' '.join([*words, kind])} {'::'.join([CRATE, *path])}{text}"))
        for part in (self.index[f"{id}"] for id in parts if f"{id}" in self.index):  # Hidden items are not in it.
            self.add(part, (*path, part["name"]), next(iter(item["inner"])))

    def add_implementation(self, it):
        of, trait = it["for"].get("resolved_path", {}).get("id"), it["trait"]
        if of not in self.names and of is not None and self.paths[f"{of}"]["crate_id"] == 0:
            return  # The type is hidden.
        items = [self.index[f"{id}"] for id in it["items"] if f"{id}" in self.index]
        if trait is None:
            for item in items if of in self.names else []:
                self.add(item, (*self.names[of].split("::"), item["name"]))
            return
        name = trait["path"].split("::")[-1]
        is_lack = it["is_negative"] and name in AUTOMATIC
        if it["blanket_impl"] or name in DERIVED or it["is_synthetic"] and not is_lack:
            return
        types = [(item["name"], item["inner"]["assoc_type"]["type"]) for item in items if "assoc_type" in item["inner"]]
        types = "".join(f" {{ {name} = {self.type(type)} }}" for name, type in types)
        text = f"impl{self.generics(it)} {'!' * it['is_negative']}{self.path(trait)} for {self.type(it['for'])}{types}"
        owner = self.names.get(of) or self.names.get(trait["id"]) or ""
        self.lines.add((tuple(owner.split("::")) if owner else (), 1, text))

    def signature(self, it, words):
        output, inputs = it["sig"]["output"], [f"{name}: {self.type(type)}" for name, type in it["sig"]["inputs"]]
        words += [word for word in ("const", "async", "unsafe") if it["header"][f"is_{word}"]]
        if any(param["name"] == "'async_trait" for param in it["generics"]["params"]):
            words.append("async")  # The macro returns Pin<Box<dyn Future<Output = ..>>>.
            for _ in range(2):
                output = output["resolved_path"]["args"]["angle_bracketed"]["args"][0]["type"]
            future = output["dyn_trait"]["traits"][0]["trait"]["args"]["angle_bracketed"]
            output = future["constraints"][0]["binding"]["equality"]["type"]
        if inputs:
            short = {"self: &Self": "&self", "self: &mut Self": "&mut self", "self: Self": "self"}
            inputs[0] = short.get(inputs[0], inputs[0])
        return f"{self.generics(it)}({', '.join(inputs)})" + (f" -> {self.type(output)}" if output else "")

    def generics(self, it):
        """Returns the parameters and the conditions, both in the brackets."""
        params, wheres = [], []
        for param in it["generics"]["params"]:
            kind, of = next(iter(param["kind"].items()))
            if self.lifetime(param["name"]) if kind == "lifetime" else not of.get("is_synthetic"):
                params.append(param["name"] + self.bounds(of.get("bounds", []), ": "))
        for where in it["generics"]["where_predicates"]:
            of = where.get("bound_predicate", {"bounds": []})
            if (bounds := self.bounds(of["bounds"], ": ")) not in ("", ": 'async_trait"):
                wheres.append(self.type(of["type"]) + bounds)
        params, wheres = ", ".join(params), f" where {', '.join(wheres)}" if wheres else ""
        return f"<{params}{wheres}>" if params or wheres else ""

    def lifetime(self, name):
        """Returns the lifetime with a space, or nothing for those that async_trait adds."""
        return "" if name is None or name.startswith(("'life", "'async_trait")) else f"{name} "

    def bounds(self, bounds, before=""):
        texts = []
        for bound in bounds:
            trait = bound.get("trait_bound")
            maybe = "?" if trait and trait["modifier"] == "maybe" else ""
            texts.append(maybe + self.path(trait["trait"]) if trait else bound.get("outlives") or "use<..>")
        return before + " + ".join(texts) if texts else ""

    def path(self, path):
        full = self.paths[f"{path['id']}"]["path"]
        name = self.names.get(path["id"]) or "::".join(full)
        if path["id"] not in self.names:
            self.foreign.add(full[0])
            if full[0] in ("alloc", "core", "std") and full[-1] not in self.names.values():
                name = full[-1]
        args = path["args"] or {}
        if "parenthesized" in args:
            output = args["parenthesized"]["output"]
            inputs = ", ".join(self.type(type) for type in args["parenthesized"]["inputs"])
            return f"{name}({inputs})" + (f" -> {self.type(output)}" if output else "")
        args, texts = args.get("angle_bracketed", {"args": [], "constraints": []}), []
        for arg in args["args"]:
            texts.append(self.lifetime(arg["lifetime"]).strip() if "lifetime" in arg else self.type(arg["type"]))
        for constraint in args["constraints"]:
            binding = constraint["binding"]
            to = f" = {self.type(binding['equality']['type'])}" if "equality" in binding else ""
            texts.append(constraint["name"] + (to or self.bounds(binding["constraint"], ": ")))
        return name + (f"<{', '.join(filter(None, texts))}>" if any(texts) else "")

    def type(self, type):
        kind, it = next(iter(type.items()))
        output = it["sig"]["output"] if kind == "function_pointer" else None
        match kind:
            case "resolved_path":
                return self.path(it)
            case "generic" | "primitive":
                return it
            case "tuple":
                return f"({', '.join(map(self.type, it))})"
            case "slice":
                return f"[{self.type(it)}]"
            case "array":
                return f"[{self.type(it['type'])}; {it['len']}]"
            case "impl_trait":
                return f"impl {self.bounds(it)}"
            case "dyn_trait":
                parts = [self.path(of["trait"]) for of in it["traits"]] + [it["lifetime"]]
                return f"dyn {' + '.join(filter(None, parts))}"
            case "borrowed_ref":
                return f"&{self.lifetime(it['lifetime'])}{'mut ' * it['is_mutable']}{self.type(it['type'])}"
            case "qualified_path":
                return f"{self.type(it['self_type'])}::{it['name']}"
            case "function_pointer":
                inputs = ", ".join(self.type(of) for _, of in it["sig"]["inputs"])
                return f"fn({inputs})" + (f" -> {self.type(output)}" if output else "")
        raise AssertionError(f"this script does not know a {kind}")


def only_async(text):
    """Returns the methods of types with a blocking counterpart that the counterpart lacks."""
    found = re.findall(rf"\bfn {CRATE}::((?:blocking::)?[A-Z]\w+::\w+)", text)
    blocking = {name.removeprefix("blocking::") for name in found if name.startswith("blocking::")}
    types = {name.split("::")[0] for name in blocking}
    return {name for name in found if name.split("::")[0] in types} - blocking


def rustdoc(arguments):
    """Runs rustdoc. It shares Cargo's limit of processes, whose file descriptors it inherits."""
    calls = [(arguments, os.environ)]
    if arguments[arguments.index("--crate-name") + 1] == CRATE:
        json_too = [*arguments, "-Zunstable-options", "--output-format=json"]
        calls.append((json_too, os.environ | {"RUSTC_BOOTSTRAP": "1"}))
    for arguments, environment in calls:
        ended = subprocess.run(["rustdoc", *arguments], env=environment, close_fds=False, check=False)
        if ended.returncode != 0:
            sys.exit(ended.returncode)
    sys.exit(0)


def main():
    if "--crate-name" in sys.argv:
        rustdoc(sys.argv[1:])
    # The flag --cfg tells Cargo that this is another build than that of a plain `cargo doc`, which writes no JSON.
    flags = "-D warnings --cfg surface"
    environment = os.environ | {"RUSTDOC": str(ROOT / ".ci/surface.py"), "RUSTDOCFLAGS": flags}
    build = ["cargo", "doc", "--workspace", "--all-features", "--no-deps"]
    if subprocess.run(build, cwd=ROOT, env=environment, check=False).returncode != 0:
        sys.exit(1)
    file = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "doc" / f"{CRATE}.json"
    described = json.loads(file.read_text())
    if described["format_version"] != FORMAT:
        print(f"surface: this script was written for format {FORMAT} of rustdoc, not {described['format_version']}")
    surface = Surface(described)
    features = tomllib.loads((ROOT / "crates" / CRATE / "Cargo.toml").read_text())["features"]
    surface.lines |= {((), 2, f"feature {name}") for name in features if not name.startswith("_")}
    surface.lines.add(((), 3, f"default features: {', '.join(features['default'])}"))
    text = "".join(f"{line}\n" for _, _, line in sorted(surface.lines))
    if "--update" in sys.argv:
        LIST.write_text(text)
    known = LIST.read_text() if LIST.exists() else ""
    difference = list(difflib.unified_diff(known.splitlines(), text.splitlines(), "reviewed", "now", n=0, lineterm=""))
    if difference:
        print(*difference, sep="\n")
        print("surface: public items changed. If this is meant, run .ci/surface.py --update, and commit the list")
    if unequal := only_async(text) ^ ONLY_ASYNC:
        print(f"surface: {', '.join(sorted(unequal))}: give it to leasehold::blocking too, or correct ONLY_ASYNC")
    if surface.foreign - FOREIGN:
        print(f"surface: types of {', '.join(surface.foreign - FOREIGN)} are in the public interface")
    sys.exit(bool(difference or unequal or surface.foreign - FOREIGN))


if __name__ == "__main__":
    main()
