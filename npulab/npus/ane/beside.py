"""What lies beside a compiled file: its source network and weights, kept with the capture and held
against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npulab.captures.target import Claim, Unsupported
from npulab.npus.ane import coefficients
from npulab.npus.ane.lifting import BLOCK
from npulab.npus.ane.source import agreement, espresso, plist
from npulab.npus.ane.source.agreement import NETWORK
from npulab.npus.ane.source.network import Network
from npulab.npus.ane.source.parameters import OPTIONAL, chain_of, nonlinear_mode, parameters, shapes
from npulab.npus.ane.tables import entries, functions
from npulab.npus.kit import Capture

# types as the symbols of a file number them; only the first is seen in one
ELEMENTS = {"Float16": 5, "UInt8": 3, "Int8": 2}
COEFFICIENTS = "coefficients"
WEIGHTS = "the weights beside it"
TABLE_MODE = 2


def beside(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(files by name, parameters of the layer) of the network in a folder; nothing where there is
    none.

    Raises ValueError naming the file and key for a network that is broken.
    """
    file = folder / NETWORK
    if not file.is_file():
        return {}, {}
    read = plist.read_plist(file)
    files = {NETWORK: file.read_bytes()}
    if len(read.networks) != 1:
        return files, {}
    # 0 as in a table of several networks, so that captures have the same numbers
    return files | plist.weights_files(read.network, folder), {
        **dict.fromkeys(OPTIONAL, 0),
        **parameters(read.network),
    }


def claims(capture: Capture) -> list[Claim]:
    """What the network beside a capture says of its registers and tensors, and its weights of the
    coefficients.

    Where one of them differs, nothing is said of coefficients: they are those of another layer.
    Raises ValueError naming the key for a network that is broken.
    """
    if NETWORK not in capture.buffers:
        return []
    network = plist.read_plist(capture.buffers[NETWORK]).network
    known = all(job.block == BLOCK for job in capture.jobs)
    compared = []
    if known:
        compared = agreement.compare(agreement.claims(network), agreement.values_of(capture))
    said = [*compared, *_tensors(capture, network)]
    if not all(one.agrees for one in said):
        return said
    if not compared:
        return []  # tensors of the same sizes alone are no agreement
    return [*said, *_table(capture, network), *_weights(capture, network)]


def _tensors(capture: Capture, network: Network) -> Iterator[Claim]:
    """Claims for how many tensors the file has, and for the sizes of those that the network
    names."""
    found = shapes(network)
    for kind, parts in (("input", network.inputs), ("output", network.outputs)):
        there = {
            one["name"]: one for one in capture.parameters.get("tensors", ()) if one["kind"] == kind
        }
        if there:
            yield Claim(0, f"{kind}s", "tensors", len(parts), len(there), NETWORK)
        for part in parts:
            if part.name in there:
                for axis, size in (("width", "w"), ("height", "h"), ("channels", "c")):
                    yield Claim(
                        0,
                        f"{axis} of {part.name}",
                        f"tensors.{part.name}.{size}",
                        getattr(found[part.name], axis),
                        there[part.name][size],
                        NETWORK,
                    )
                if found[part.name].type in ELEMENTS:
                    yield Claim(
                        0,
                        f"type of {part.name}",
                        f"tensors.{part.name}.element",
                        ELEMENTS[found[part.name].type],
                        there[part.name]["element"],
                        NETWORK,
                    )


def _table(capture: Capture, network: Network) -> Iterator[Claim]:
    """A claim for the function of the one activation table, where both sides are known."""
    users = [
        task
        for task in agreement.values_of(capture)
        if task.get("NE.MACCfg.NonlinearMode") == TABLE_MODE
    ]
    if COEFFICIENTS not in capture.buffers or len(users) != 1 or not network.units:
        return
    chain = chain_of(network)
    name = chain.neuron.lower().replace("_", "")
    # the others are made of several steps, of which the table is one
    direct = {one.replace("_", ""): one for one in functions.FITS}
    if chain.main.type != "Neuron" or nonlinear_mode(chain) != TABLE_MODE or name not in direct:
        return
    try:
        at, size = coefficients.places_of(users[0])[0]
        found = functions.identify(entries.decode(capture.buffers[COEFFICIENTS][at : at + size]))
    except (ValueError, IndexError, Unsupported):
        return
    if found is not None:
        # an odd one, to which a task behind it adds the half
        if found == "sigmoid_less_half":
            found = "sigmoid"
        yield Claim(0, "function of the table", COEFFICIENTS, direct[name], found, NETWORK)


def _weights(capture: Capture, network: Network) -> Iterator[Claim]:
    """A claim for the weights of the network's convolution, and one for its bias, where both sides
    have them."""
    if COEFFICIENTS not in capture.buffers:
        return
    wanted = _source(capture, network)
    for unit, source in wanted.items():
        try:
            fields = agreement.values_of(capture)[0]
            kernel, places = coefficients.from_registers(fields), coefficients.places_of(fields)
            weights, bias = coefficients.decode(kernel, capture.buffers[COEFFICIENTS], places)
        except ValueError as error:
            raise Unsupported(f"weights of {unit} are not compared: {error}") from None
        for what, mine, theirs in (
            ("weights", weights, source.weights),
            ("biases", bias, source.bias),
        ):
            if mine is not None and theirs is not None:
                same = 0
                if mine.shape == theirs.shape:
                    same = int(np.count_nonzero(mine == theirs))
                yield Claim(
                    0, f"{what} of {unit} that are equal", COEFFICIENTS, theirs.size, same, WEIGHTS
                )


def _source(capture: Capture, network: Network) -> Mapping[str, espresso.SourceWeights]:
    """The weights of a network of one convolution, where its files are there."""
    convolutions = [unit.name for unit in network.units if unit.type == "Conv"]
    names = {Path(one).name for one in network.weights or ()}
    if len(convolutions) != 1 or not names <= capture.buffers.keys():
        return {}
    return espresso.source_weights(network, {name: capture.buffers[name] for name in names})
