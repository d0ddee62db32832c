"""What every preset promises, tested on every preset there is."""

from helpers.offenders import offenders

from sslbench.config import build
from sslbench.library.presets import load_preset
from sslbench.names import list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find
from sslbench.protocols._parts.presets import full_settings

SHIPPED = {
    "discovery/dino_seg",
    "discovery/lost",
    "discovery/tokencut",
    "depth/dinov2_kitti_lin4",
    "depth/dinov2_nyu_dpt",
    "depth/dinov2_nyu_lin1",
    "depth/dinov2_nyu_lin4",
    "depth/dinov3_nyu",
    "depth/probe3d_dpt",
    "correspondence/dino_spair",
    "correspondence/dinov2_spair",
    "correspondence/probe3d_spair",
    "correspondence/visbench_homography",
    "finetune/beit",
    "finetune/dino",
    "finetune/mae",
    "finetune/simclr_10pct",
    "finetune/simclr_1pct",
    "finetune/swav_10pct",
    "finetune/swav_1pct",
    "finetune/vissl",
    "finetune/vtab1k",
    "geolocation/fine",
    "geolocation/vissl",
    "knn/dino",
    "knn/dinov2",
    "knn/npid",
    "knn/vissl",
    "linear/clip",
    "linear/dino",
    "linear/dinov2",
    "linear/dinov2_logreg",
    "linear/mae",
    "linear/moco",
    "linear/simclr",
    "linear/swav",
    "linear/vissl",
    "linear/vissl_inaturalist18",
    "linear/vissl_places205",
    "low_shot/vissl_places",
    "low_shot/vissl_voc07",
    "lsr/big_vision",
    "normals/probe3d_dpt",
    "retrieval/dino_copydays",
    "retrieval/dinov2_roxford",
    "retrieval/gem",
    "retrieval/vissl_rmac",
    "robustness/imagenet_c",
    "saliency/tokencut",
    "segmentation/dinov2",
    "segmentation/dinov2_ms",
    "segmentation/dinov3",
    "segmentation/quick",
    "segmentation_knn/hummingbird",
    "segmentation_knn/stego",
    "segmentation_knn/vissl_knn",
    "svm/voc07",
    "tracking/crw",
    "tracking/crw_jhmdb",
    "tracking/crw_vip",
    "tracking/dino",
    "tracking/dinov3",
}


def test_the_shipped_presets_are_the_expected_ones():
    assert set(list_names("preset")) == SHIPPED


def is_complete_and_builds(name):
    preset = load_preset(name)
    assert preset.title and preset.version >= 1 and not preset.modified and len(preset.sha256) == 16
    assert any(char.isdigit() for char in preset.source) or ".py" in preset.source, "names no paper and no file"
    build(find(preset.protocol).settings, preset.settings, name)
    build(Preprocessing, preset.preprocessing, name)
    assert preset.family == preset.protocol or (preset.family, preset.protocol) == ("linear", "linear-online")


def test_every_preset_is_complete_and_its_settings_build():
    assert offenders(sorted(SHIPPED), is_complete_and_builds) == []


def declares_selection_on_test(name):
    protocol, content = full_settings(name)
    asked = "test" in (content.get("select"), content.get("select_on"))
    assert load_preset(name).selects_on_test == asked
    _, defaults = full_settings(protocol)
    assert "test" not in (defaults.get("select"), defaults.get("select_on"))


def test_what_is_selected_on_test_is_declared_and_no_default_does_it():
    assert offenders(sorted(SHIPPED), declares_selection_on_test) == []


def test_no_two_presets_of_a_protocol_are_the_same():
    contents = [full_settings(name) for name in SHIPPED]
    assert all(contents.count(one) == 1 for one in contents)
