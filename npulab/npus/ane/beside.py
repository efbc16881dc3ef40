"""The source network (``net.plist``) and weight files in the folder of a compiled file.

The importer keeps these files with the capture; ``claims`` compares the capture with them.
"""

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

# The code of each element type in a file's symbols. Only the code of Float16 was seen in a file.
ELEMENTS = {"Float16": 5, "UInt8": 3, "Int8": 2}
COEFFICIENTS = "coefficients"
WEIGHTS = "the weights of its folder"
TABLE_MODE = 2


def beside(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the bytes of ``net.plist`` and its weight files by name, and the layer's parameters.

    Both dictionaries are empty if the folder has no ``net.plist``. If ``net.plist`` has several
    networks, weight files and parameters are left out. Raises ValueError, with file and key, for a
    broken network.
    """
    file = folder / NETWORK
    if not file.is_file():
        return {}, {}
    read = plist.read_plist(file)
    files = {NETWORK: file.read_bytes()}
    if len(read.networks) != 1:
        return files, {}
    # Captures of several networks are put into one table of parameters; a parameter that a network
    # does not have is 0, so that its column has numbers only.
    known = dict.fromkeys(OPTIONAL, 0) | parameters(read.network)
    return files | plist.weights_files(read.network, folder), known


def claims(capture: Capture) -> list[Claim]:
    """Return what the source network of a capture states about it, compared with the capture.

    The claims are about registers, tensors and coefficients. The list is empty if the capture has
    no network, or if all its tensors agree and no register can be compared. If a register or tensor
    differs, coefficients are not compared, because they belong to another layer. Raises ValueError,
    with the key, for a broken network, and ``Unsupported`` for weights that cannot be decoded.
    """
    if NETWORK not in capture.buffers:
        return []
    network = plist.read_plist(capture.buffers[NETWORK]).network
    known = all(job.block == BLOCK for job in capture.jobs)
    compared = []
    if known:
        compared = agreement.compare(agreement.claims(network), agreement.values_of(capture))
    said = [*compared, *_tensor_claims(capture, network)]
    if not all(claim.agrees for claim in said):
        return said
    # Equal sizes of tensors alone do not prove that the network belongs to the capture.
    if not compared:
        return []
    return [*said, *_table_claims(capture, network), *_weight_claims(capture, network)]


def _tensor_claims(capture: Capture, network: Network) -> Iterator[Claim]:
    """Yield claims about the numbers of inputs and outputs, and about each tensor's sizes and type.

    Only tensors whose name the network has are compared.
    """
    found = shapes(network)
    tensors = capture.parameters.get("tensors", ())
    for kind, parts in (("input", network.inputs), ("output", network.outputs)):
        by_name = {tensor["name"]: tensor for tensor in tensors if tensor["kind"] == kind}
        if by_name:
            yield Claim(0, f"{kind}s", "tensors", len(parts), len(by_name), NETWORK)
        for name in (part.name for part in parts if part.name in by_name):
            shape, tensor = found[name], by_name[name]
            stated = [
                ("width", "w", shape.width),
                ("height", "h", shape.height),
                ("channels", "c", shape.channels),
            ]
            if shape.type in ELEMENTS:
                stated.append(("type", "element", ELEMENTS[shape.type]))
            for what, key, number in stated:
                where = f"tensors.{name}.{key}"
                yield Claim(0, f"{what} of {name}", where, number, tensor[key], NETWORK)


def _table_claims(capture: Capture, network: Network) -> Iterator[Claim]:
    """Yield a claim about the function of the activation table, if it can be compared.

    The capture has one table, the network is one activation that the compiler makes with a table,
    and the table's function is recognised.
    """
    tasks = agreement.values_of(capture)
    users = [task for task in tasks if task.get("NE.MACCfg.NonlinearMode") == TABLE_MODE]
    if COEFFICIENTS not in capture.buffers or len(users) != 1 or not network.units:
        return
    chain = chain_of(network)
    name = chain.neuron.lower().replace("_", "")
    # The table has the whole function only of these activations. The compiler computes other
    # activations in several steps, and the table has one of them.
    direct = {known.replace("_", ""): known for known in functions.FITS}
    if chain.main.type != "Neuron" or nonlinear_mode(chain) != TABLE_MODE or name not in direct:
        return
    try:
        at, size = coefficients.places_of(users[0])[0]
        found = functions.identify(entries.decode(capture.buffers[COEFFICIENTS][at : at + size]))
    except (ValueError, IndexError, Unsupported):
        return
    if found is not None:
        # The sigmoid's table is sigmoid(x) - 1/2, an odd function; a later task adds the half.
        if found == "sigmoid_less_half":
            found = "sigmoid"
        yield Claim(0, "function of the table", COEFFICIENTS, direct[name], found, NETWORK)


def _weight_claims(capture: Capture, network: Network) -> Iterator[Claim]:
    """Yield claims about the weights and the bias of the network's only convolution.

    Weights or a bias that the network or the capture does not have are not compared.
    """
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
        for kind, got, expected in (
            ("weights", weights, source.weights),
            ("biases", bias, source.bias),
        ):
            if got is None or expected is None:
                continue
            same = 0
            if got.shape == expected.shape:
                same = int(np.count_nonzero(got == expected))
            what = f"{kind} of {unit} that are equal"
            yield Claim(0, what, COEFFICIENTS, expected.size, same, WEIGHTS)


def _source(capture: Capture, network: Network) -> Mapping[str, espresso.SourceWeights]:
    """Return the source weights of a network's only convolution, by the unit's name.

    The result is empty if the network has another number of convolutions, or if the capture does
    not have its weight files.
    """
    convolutions = [unit.name for unit in network.units if unit.type == "Conv"]
    names = {Path(path).name for path in network.weights or ()}
    if len(convolutions) != 1 or not names <= capture.buffers.keys():
        return {}
    return espresso.source_weights(network, {name: capture.buffers[name] for name in names})
