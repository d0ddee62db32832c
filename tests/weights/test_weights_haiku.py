"""BYOL's checkpoints by DeepMind: read without Haiku, JAX or dill, and the same network but for how it pads."""

import io
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.resnet import Bottleneck

from sslbench.backbones.convert import convert
from sslbench.backbones.load import load_file
from sslbench.errors import WeightsError
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import read

FIELDS = ("online_params", "target_params", "online_state", "target_state", "opt_state")
BLOCK = "res_net50/~/block_group_1/~/block_0/~"


class Named:
    """Pickled as a call, or the mention, of something that is not installed."""

    def __init__(self, where, args=None):
        self.where, self.args = where, args


class Pickler(pickle._Pickler):
    """Writes what dill and Haiku write: their functions by name, arrays by dill's own function if asked."""

    def __init__(self, file, dill):
        super().__init__(file, protocol=2)
        self.dill = dill

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Named):
            module, _, name = value.where.rpartition(".")
            if value.args is None:
                self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
                return None
            self.save(Named(value.where))
            self.save(value.args)
            return self.write(pickle.REDUCE)
        if isinstance(value, State):
            self.save(value.made_by(self.dill))
            self.save(tuple(value.values))
            return self.write(pickle.NEWOBJ)
        if self.dill and type(value) is np.ndarray:
            make, args, state = value.__reduce__()
            return self.save(Named("dill._dill._create_array", (make, args, state, None)))
        return super().save(value, save_persistent_id)


class State:
    """The named tuple: a class of the experiment, or one that dill makes from its fields."""

    def __init__(self, values):
        self.values = values

    def made_by(self, dill):
        module, name = "byol.byol_experiment", "_ByolExperimentState"
        return Named("dill._dill._create_namedtuple", (name, FIELDS, module)) if dill else Named(f"{module}.{name}")


def flat_mapping(tree):
    inner = {key: Named("haiku._src.data_structures.FlatMapping", (value,)) for key, value in tree.items()}
    return Named("haiku._src.data_structures.FlatMapping", (inner,))


def dump(content, *, dill=True):
    file = io.BytesIO()
    Pickler(file, dill).dump(content)
    return file.getvalue()


def trees(seed=0, blocks=(1, 1, 1, 1), width=8):
    """Parameters and state of a small bottleneck ResNet and a projector: {module: {name: array}}, Haiku's shapes."""
    generator = np.random.default_rng(seed)
    params, state = {}, {}

    def unit(where, conv, norm, *shape):
        deviation = np.sqrt(2 / np.prod(shape[:-1]))
        params[f"{where}/{conv}"] = {"w": (deviation * generator.standard_normal(shape)).astype(np.float32)}
        one = (1, 1, 1, shape[-1])
        values = [generator.uniform(0.5, 1.5, one).astype(np.float32) for _ in range(4)]
        params[f"{where}/{norm}"] = {"scale": values[0], "offset": values[1]}
        for which, value in zip(("mean", "var"), values[2:], strict=True):
            entry = {"hidden": value / 2, "average": value, "counter": np.array(7, np.int32)}
            state[f"{where}/{norm}/~/{which}_ema"] = entry

    unit("res_net50/~", "initial_conv", "initial_batchnorm", 7, 7, 3, width)
    inputs = width
    for group, count in enumerate(blocks):
        inner = width * 2**group
        for block in range(count):
            where = f"res_net50/~/block_group_{group}/~/block_{block}/~"
            if block == 0:
                unit(where, "shortcut_conv", "shortcut_batchnorm", 1, 1, inputs, 4 * inner)
            unit(where, "conv_0", "batchnorm_0", 1, 1, inputs, inner)
            unit(where, "conv_1", "batchnorm_1", 3, 3, inner, inner)
            unit(where, "conv_2", "batchnorm_2", 1, 1, inner, 4 * inner)
            inputs = 4 * inner
    params["projector/linear"] = {"w": np.ones((inputs, 4), np.float32), "b": np.ones(4, np.float32)}
    return params, state


def checkpoint(path, *, dill=True):
    (params, state), (target, moving) = trees(0), trees(1)
    optimizer = Named("byol.utils.optimizers.LarsState", (np.int32(3),))
    values = [*map(flat_mapping, (params, target, state, moving)), optimizer]
    make, args, array_state = np.arange(2, dtype=np.uint32).__reduce__()
    rng = Named("jax._src.array._reconstruct_array", (make, args, array_state, {"weak_type": False}))
    path.write_bytes(dump({"experiment_state": State(values), "step": np.int32(7), "rng": rng}, dill=dill))
    return path


@pytest.mark.parametrize("dill", [True, False])
def test_a_checkpoint_is_read_and_recognised_with_nothing_of_it_imported(tmp_path, monkeypatch, dill):
    for name in ("haiku", "jax", "dill", "byol"):
        monkeypatch.setitem(sys.modules, name, None)
    file = read(checkpoint(tmp_path / "pretrain.pkl", dill=dill))
    assert file.suspicious == () and file.content["step"] == 7
    found = recognise(file)
    assert (found.format, found.where, found.network) == ("byol_deepmind", "experiment_state.online", "online")
    assert found.other_networks == ("target",)
    params, state = trees(0)
    kernel = torch.from_numpy(params[f"{BLOCK}/conv_1"]["w"])
    assert torch.equal(found.canonical["layer2.0.conv2.weight"], kernel.permute(3, 2, 0, 1))
    variance = state[f"{BLOCK}/shortcut_batchnorm/~/var_ema"]["average"]
    assert torch.equal(found.canonical["layer2.0.downsample.1.running_var"], torch.from_numpy(variance[0, 0, 0]))


def test_the_target_network_is_taken_on_request(tmp_path):
    found = recognise(read(checkpoint(tmp_path / "pretrain.pkl")), format="byol_deepmind:target")
    kernel = torch.from_numpy(trees(1)[0]["res_net50/~/initial_conv"]["w"])
    assert torch.equal(found.canonical["conv1.weight"], kernel.permute(3, 2, 0, 1))


def test_the_report_of_loading_says_that_features_differ(tmp_path):
    line = load_file(read(checkpoint(tmp_path / "pretrain.pkl"))).report.line()
    assert "format byol_deepmind (online, not target" in line and "'SAME' padding" in line


@pytest.mark.parametrize("suffix", ["pth", "pkl"])
def test_there_and_back_is_bit_for_bit_the_same(tmp_path, suffix):
    first = checkpoint(tmp_path / "pretrain.pkl")
    assert "'SAME' padding" in convert(first, tmp_path / "r50.pth", to="torchvision").note
    convert(tmp_path / "r50.pth", tmp_path / f"back.{suffix}", to="byol_deepmind")
    before, after = (read(path).content["experiment_state"]["online"] for path in (first, tmp_path / f"back.{suffix}"))
    kept = {key for key in before if key.startswith("res_net50/") and not key.endswith(("hidden", "counter"))}
    assert after.keys() == kept
    assert all(torch.equal(before[key], after[key]) and before[key].shape == after[key].shape for key in kept)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("where", ["dill._dill._create_array", "jax._src.array._reconstruct_array"])
def test_dills_and_jaxs_functions_call_nothing_that_the_file_may_not(tmp_path, where):
    marker = tmp_path / "ran"
    content = {"w": Named(where, (os.system, (f"touch {marker}",), None, None))}
    (tmp_path / "w.pkl").write_bytes(dump(content))
    with pytest.raises(WeightsError, match=r"asks to call '\w+\.system'.*nothing was run"):
        read(tmp_path / "w.pkl")
    (tmp_path / "w.pkl").write_bytes(dump({"w": flat_mapping({"m": {"w": Payload(marker)}})}))
    with pytest.raises(WeightsError, match=r"asks to call"):
        read(tmp_path / "w.pkl")
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        Named("dill._dill._create_array", (Named("collections.OrderedDict"), (), None, None)),
        Named("dill._dill._create_dtypemeta", ("float32",)),
        Named("dill._dill._create_namedtuple", ("Name", 3)),
        Named("haiku._src.data_structures.FlatMapping", ([1, 2],)),
        State([1, 2]),
    ],
)
def test_damaged_calls_are_refused(tmp_path, value):
    (tmp_path / "w.pkl").write_bytes(dump({"w": value}))
    with pytest.raises(WeightsError, match="cannot be read as a pickle file"):
        read(tmp_path / "w.pkl")


def same_padding(size, kernel, stride):
    """TensorFlow's and XLA's rule: as many outputs as ceil(size / stride), the odd row at the end."""
    whole = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return whole // 2, whole - whole // 2


def oracle_conv(image, kernel, stride):
    """NHWC and HWIO, position by position, float64."""
    height, width = kernel.shape[:2]
    pads = [same_padding(size, k, stride) for size, k in zip(image.shape[1:3], (height, width), strict=True)]
    padded = np.pad(image, [(0, 0), *pads, (0, 0)])
    rows, columns = (-(-size // stride) for size in image.shape[1:3])
    made = np.zeros((len(image), rows, columns, kernel.shape[3]))
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride, column * stride
            made[:, row, column] = np.tensordot(padded[:, top : top + height, left : left + width], kernel, 3)
    return made


def oracle_block(image, params, state, stride):
    """A bottleneck block of Haiku with its shortcut."""

    def unit(value, conv, norm, stride=1):
        value = oracle_conv(value, params[f"{BLOCK}/{conv}"]["w"].astype(np.float64), stride)
        averages = [state[f"{BLOCK}/{norm}/~/{which}_ema"]["average"] for which in ("mean", "var")]
        learnt = [params[f"{BLOCK}/{norm}"][name] for name in ("scale", "offset")]
        mean, variance, scale, offset = (array.astype(np.float64) for array in averages + learnt)
        return (value - mean) / np.sqrt(variance + 1e-5) * scale + offset

    out = np.maximum(unit(image, "conv_0", "batchnorm_0"), 0)
    out = np.maximum(unit(out, "conv_1", "batchnorm_1", stride), 0)
    out = unit(out, "conv_2", "batchnorm_2")
    return np.maximum(out + unit(image, "shortcut_conv", "shortcut_batchnorm", stride), 0)


class SamePadding(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, conv.padding = conv, 0

    def forward(self, images):
        (top, bottom), (left, right) = (same_padding(n, self.conv.kernel_size[0], 2) for n in images.shape[2:])
        return self.conv(nn.functional.pad(images, (left, right, top, bottom)))


@pytest.mark.parametrize(("size", "torchvision_pads_alike"), [(8, False), (9, True)])
def test_a_block_computes_what_haikus_does_but_for_the_padding_of_even_sizes(tmp_path, size, torchvision_pads_alike):
    canonical = recognise(read(checkpoint(tmp_path / "pretrain.pkl"))).canonical
    weights = {k.removeprefix("layer2.0."): t.double() for k, t in canonical.items() if k.startswith("layer2.0.")}
    inputs, inner = weights["conv1.weight"].shape[1], weights["conv1.weight"].shape[0]
    shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * inner, 1, stride=2, bias=False), nn.BatchNorm2d(4 * inner))
    block = Bottleneck(inputs, inner, stride=2, downsample=shortcut).double().eval()
    counters = {k: t for k, t in block.state_dict().items() if k.endswith("num_batches_tracked")}
    block.load_state_dict({**weights, **counters})
    images = np.random.default_rng(2).standard_normal((2, size, size, inputs))
    wanted = oracle_block(images, *trees(0), stride=2)

    def computed():
        with torch.no_grad():
            return block(torch.from_numpy(images).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()

    assert np.allclose(computed(), wanted, rtol=1e-9, atol=1e-9) == torchvision_pads_alike
    block.conv2 = SamePadding(block.conv2)
    np.testing.assert_allclose(computed(), wanted, rtol=1e-9, atol=1e-9)
