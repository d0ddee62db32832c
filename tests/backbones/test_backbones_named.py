"""Networks by their names: of timm, of hubs, of addresses."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from helpers.serving import serving
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import nn

from sslbench import paths
from sslbench.backbones import named
from sslbench.backbones.backbone import probe_images
from sslbench.backbones.build import build, laid_out
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.speed import prepare
from sslbench.config import read_yaml
from sslbench.data import remote
from sslbench.errors import UsageError, WeightsError
from sslbench.evaluation.record import weights_used
from sslbench.leaderboard.published import published_runs


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    named.fetch.cache_clear()
    yield
    remote._HELD.clear()
    named.fetch.cache_clear()


def write_resnet(path):
    module = build("resnet18w0.25", seed=5).module
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in module.state_dict().items()},
        path,
    )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_address_is_fetched_once_and_its_hash_compared_before_anything_reads_it(tmp_path, monkeypatch):
    sha = write_resnet(tmp_path / "served" / "r18.pth")
    with serving(tmp_path / "served") as server:
        url = f"{server.address}/r18.pth"
        backbone = load_backbone(f"{url}#sha256={sha}", backbone="resnet18w0.25")
        local = load_backbone(str(tmp_path / "served" / "r18.pth"), backbone="resnet18w0.25")
        assert backbone.weights_sha256 == local.weights_sha256
        used = weights_used(backbone, f"{url}#sha256={sha}")
        assert (used.name, used.source) == ("r18.pth", url) and Path(used.path).is_file()
        named.fetch.cache_clear()
        load_backbone(url, backbone="resnet18w0.25")
        assert server.fetched() == {"r18.pth": 1}

        def never(*_, **__):
            raise AssertionError("read before it was verified")

        monkeypatch.setattr("sslbench.weights.reading.files.read", never)
        with pytest.raises(WeightsError, match=f"its SHA-256 is {sha}, expected is {'0' * 64}"):
            load_backbone(f"{url}#sha256={'0' * 64}", backbone="resnet18w0.25")


def test_without_a_network_the_message_names_a_place_and_a_file_there_is_used(tmp_path):
    url = "http://127.0.0.1:9/models/r18.pth"
    with pytest.raises(WeightsError, match="put it at") as error:
        load_backbone(url, backbone="resnet18w0.25")
    place = Path(error.value.remedy.rpartition(" ")[2])
    assert place.is_relative_to(paths.cache_dir())
    sha = write_resnet(place)
    assert load_backbone(f"{url}#sha256={sha}", backbone="resnet18w0.25").report.loaded > 100


@pytest.mark.parametrize(
    "weights", ["https://example.org/a.pth#md5=00", "https://example.org/a.pth#sha256=12", "hf:onlyone", "vissl:simclr"]
)
def test_what_is_no_name_is_refused_before_anything_is_asked(weights):
    with pytest.raises(UsageError):
        load_backbone(weights)


def test_every_name_of_the_zoo_is_that_of_its_published_number():
    zoo = read_yaml(paths.builtin_dir("model_converters") / "_vissl_zoo.yaml")
    published = {name.rpartition("/")[2] for name in published_runs() if name.startswith("linear/imagenet1k/vissl/")}
    assert published - set(zoo) == {"supervised-torchvision-resnet50", "supervised-torchvision-resnet101"}
    assert len(set(zoo.values())) == len(zoo) == 74
    assert all(url.startswith("https://") for url in zoo.values())


COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """The addresses of the Hugging Face Hub that hf_hub_download asks, for a folder REPO/FILE."""

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.folder, self.asked = folder, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class HubHandler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        name = rest.partition("/")[2]
        path = self.server.folder / repo / name
        self.server.asked.append(f"{self.command} {name}")
        if not path.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = path.read_bytes()
        self.send_response(200)
        tag = self.server.folder / repo / f"{name}.tag"
        etag = tag.read_text() if tag.exists() else hashlib.sha256(content).hexdigest()
        for key, value in (("ETag", f'"{etag}"'), ("X-Repo-Commit", COMMIT), ("Content-Length", str(len(content)))):
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


def told(weights):
    try:
        backbone = load_backbone(weights)
    except WeightsError as error:
        return error.message, error.remedy
    used = weights_used(backbone, weights)
    return backbone.name, used.name, used.source, backbone.preprocessing.origin


def test_models_of_the_hub_and_of_timm(tmp_path, monkeypatch):
    model = timm.create_model("test_vit", pretrained=False)
    folder, damaged = (tmp_path / "hub" / "timm" / name for name in ("test_vit.r160_in1k", "damaged"))
    for each in (folder, damaged):
        each.mkdir(parents=True)
        safetensors.torch.save_file(model.state_dict(), each / "model.safetensors")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (damaged / "model.safetensors.tag").write_text("0" * 64)  # another hash than that of the content
    sharded = tmp_path / "hub" / "mine" / "sharded"
    sharded.mkdir(parents=True)
    names = sorted(model.state_dict())
    parts = {"model-1-of-2.safetensors": names[:9], "model-2-of-2.safetensors": names[9:]}
    for part, own in parts.items():
        safetensors.torch.save_file({name: model.state_dict()[name] for name in own}, sharded / part)
    places = {name: part for part, own in parts.items() for name in own}
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (sharded / "config.json").write_text(json.dumps({"architecture": "test_vit"}))
    asked = ("timm:test_vit", "hf:mine/sharded", "hf:timm/test_vit.r160_in1k:nothing.pt")
    asked += ("hf:timm/damaged", "hf:timm/other")
    with Hub(tmp_path / "hub") as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        constants = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template}
        constants |= {"HF_HUB_CACHE": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": True}
        for key, value in constants.items():  # huggingface_hub reads its environment only once
            monkeypatch.setattr(f"huggingface_hub.constants.{key}", value)
        first, shards, nothing, broken, other = map(told, asked)
        backbone, name, source, origin = first
        assert backbone == "timm:test_vit.r160_in1k" and name == "timm:test_vit" and "r160_in1k" in origin
        assert source == f"hf:timm/test_vit.r160_in1k@{COMMIT}:model.safetensors"
        place = f"hf:mine/sharded@{COMMIT}:model.safetensors.index.json"
        assert shards[:3] == ("timm:test_vit", "hf:mine/sharded", place)
        assert "GET pytorch_model.bin" not in hub.asked, "safetensors is preferred"
        assert "nothing.pt" in nothing[0] and "FILE" in nothing[1]
        assert "is not the expected file" in broken[0]
        assert "model.safetensors" in other[0] and "pytorch_model.bin" in other[0]


def test_a_hub_that_cannot_be_reached(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*_, **__):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    monkeypatch.setattr("sslbench.data.remote.refuse_unreachable", lambda address: None)
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be fetched") as error:
        load_backbone("hf:facebook/dinov2-small")
    place = Path(error.value.remedy.rpartition(" ")[2])
    assert place.is_relative_to(paths.cache_dir()) and place.name == "model.safetensors"


def test_without_a_network_the_hub_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("the Hub was asked"))
    caplog.set_level("INFO", "sslbench")
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be fetched: 127\.0\.0\.1 cannot be reached"):
        load_backbone("hf:facebook/dinov2-small")
    assert "fetching model.safetensors from the Hugging Face Hub (http://127.0.0.1:9)" in caplog.text


def test_offline_mode_of_the_hub_is_respected(monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.create_connection", lambda *_, **__: pytest.fail("the network was used"))
    with pytest.raises(WeightsError, match="cannot be fetched, as HF_HUB_OFFLINE is set") as error:
        load_backbone("hf:facebook/dinov2-small")
    assert "fetching" not in caplog.text and "copy " in error.value.remedy


def test_a_proxy_is_asked_in_place_of_the_server(monkeypatch):
    asked = []
    monkeypatch.setattr("socket.create_connection", lambda address, timeout: asked.append(address) or Closed())
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "proxy.local:3128"})
    monkeypatch.setattr("urllib.request.proxy_bypass", lambda host: host == "inside.local")
    remote.refuse_unreachable("https://huggingface.co")
    remote.refuse_unreachable("https://inside.local")
    assert asked == [("proxy.local", 3128), ("inside.local", 443)]


class Closed:
    def close(self):
        pass


TINY = sorted(timm.list_models("test_*"))
SWIN = "swin_tiny_patch4_window7_224,img_size=56,depths=1-1-2-1"
FAMILIES = ["mobilenetv3_small_050", "regnetx_002", SWIN, "xcit_nano_12_p16_224,depth=3"]


def test_there_are_tiny_models_to_test():
    assert len(TINY) >= 10
    assert {"test_resnet", "test_vit", "test_convnext", "test_efficientnet"} <= set(TINY)


@pytest.mark.parametrize("name", TINY + FAMILIES)
def test_every_layer_of_every_family_gives_the_same_vectors_prepared_or_not_and_in_any_batch(name):
    backbone = build(f"timm:{name}")
    for part in backbone.module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
    assert {"features", "last", "features.0", "features.1"} <= set(backbone.aliases)
    layers = resolve_layers(backbone, list(backbone.aliases))
    images = probe_images(backbone.preprocessing, 3)
    with torch.inference_mode():
        wanted = forward_layers(backbone.module, images, layers)
        reference = backbone.module(images)
    torch.testing.assert_close(wanted["features"], reference)
    encode = prepare(backbone, layers, device=torch.device("cpu"))
    got, single = encode(images), encode(images[:1])
    for text, value in wanted.items():
        scale = float(value.abs().max())
        assert value.shape[0] == 3
        assert value.ndim == 2
        assert torch.isfinite(value).all()
        assert value.std() > 0
        torch.testing.assert_close(got[text], value, rtol=0, atol=1e-4 * scale)
        torch.testing.assert_close(single[text], got[text][:1], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize(("name", "channels"), [(SWIN, 96), ("test_mambaout", 16)])
def test_channels_last_maps_are_pooled_over_space(name, channels):
    backbone = build(f"timm:{name}")
    layers = resolve_layers(backbone, ["features.0"])
    with torch.no_grad():
        images = probe_images(backbone.preprocessing)
        [got] = forward_layers(backbone.module, images, layers).values()
        expected = backbone.module.forward_intermediates(images, indices=[0], intermediates_only=True)[0].mean((2, 3))
    assert got.shape == (1, channels)
    torch.testing.assert_close(got, expected)


def test_a_vision_transformer_gives_class_token_and_mean_of_patches():
    backbone = build("timm:vit_tiny_patch16_224")
    assert backbone.module.num_prefix_tokens == 1
    images = probe_images(backbone.preprocessing)
    layers = resolve_layers(backbone, ["features", "last", "last:mean", "blocks.3:cls+mean"])
    with torch.no_grad():
        got = forward_layers(backbone.module, images, layers)
        tokens = backbone.module.forward_features(images)
    torch.testing.assert_close(got["features"], tokens[:, 0])
    torch.testing.assert_close(got["last"], tokens[:, 0])
    torch.testing.assert_close(got["last:mean"], tokens[:, 1:].mean(1))
    assert got["blocks.3:cls+mean"].shape == (1, 384)


def test_blocks_before_the_class_token_joins_are_averaged():
    """XCiT appends its class token after the last block: before, the first token is a patch like any other."""
    backbone = build("timm:xcit_nano_12_p16_224")
    taken = {}
    backbone.module.blocks[3].register_forward_hook(lambda module, args, output: taken.update(tokens=output))
    layers = resolve_layers(backbone, ["features.3", "last", "last:mean"])
    with torch.no_grad():
        images = probe_images(backbone.preprocessing)
        got = forward_layers(backbone.module, images, layers)
        tokens = backbone.module.forward_features(images)
    torch.testing.assert_close(got["features.3"], taken["tokens"].mean(1))
    torch.testing.assert_close(got["last"], tokens[:, 0])
    torch.testing.assert_close(got["last:mean"], tokens[:, 1:].mean(1))


@pytest.mark.parametrize(
    "name",
    [
        "resnet18.a1_in1k",
        "vit_small_patch16_224.dino",
        "convnext_tiny.fb_in22k_ft_in1k_384",
        "convnext_tiny.fb_in22k",
        "test_vit",
        "regnety_016",
    ],
)
def test_preprocessing_is_that_of_timm(name):
    with laid_out():
        backbone = build(f"timm:{name}")
        cfg = resolve_model_data_config(timm.create_model(name, pretrained=False))
    resize, crop, *_, normalise = create_transform(**cfg, is_training=False).transforms
    ours = backbone.preprocessing
    wanted = resize.size if isinstance(resize.size, int) or len(resize.size) == 1 else tuple(resize.size)
    assert ours.resize == wanted
    assert ours.crop == tuple(crop.size)
    assert ours.interpolation == resize.interpolation.value
    assert ours.mean == pytest.approx(normalise.mean.tolist())
    assert ours.std == pytest.approx(normalise.std.tolist())
    assert ours.origin.startswith(f"timm {name.partition('.')[0]}")
    assert (name in ours.origin) or "." not in name


def test_a_crop_mode_that_cannot_be_had_is_said(caplog):
    with laid_out():
        backbone = build("timm:" + next(n for n in timm.list_models() if "deepseek_vit" in n))
    assert "squashed" in backbone.preprocessing.origin
    assert "crop mode 'border'" in caplog.text


def test_stages_of_hrnets_are_the_maps_of_timms_feature_info():
    backbone = build("timm:hrnet_w18_small")
    layers = resolve_layers(backbone, [f"features.{i}:flatten" for i in range(5)] + ["last"])
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.zeros(1, 3, 64, 64), layers)
    sizes = [found[f"features.{i}:flatten"].shape[1] for i in range(5)]
    info = backbone.module.feature_info
    assert sizes == [one["num_chs"] * (64 // one["reduction"]) ** 2 for one in info]
    assert found["last"].shape == (1, backbone.module.num_features)
