"""Recognising: the right format, or a message that says what the keys look like."""

import pytest
import torch
import torchvision

from sslbench.errors import UsageError, WeightsError
from sslbench.weights.formats.places import common_prefix
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import WeightsFile, read
from sslbench.weights.save import save


@pytest.fixture(scope="module")
def resnet():
    return torchvision.models.resnet18().state_dict()


def file(tmp_path, content):
    return WeightsFile(tmp_path / "w.pth", "0" * 64, content, "torch zip")


def prefixed(prefix, tensors):
    return {prefix + key: tensor for key, tensor in tensors.items()}


def shapes(tensors):
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}


def test_heads_are_set_aside_and_kept(tmp_path, resnet):
    found = recognise(file(tmp_path, resnet))
    assert found.format == "torchvision" and found.ignored == ("fc.*",)
    assert set(found.heads) == {"fc.weight", "fc.bias"} and not any(key.startswith("fc") for key in found.canonical)


def test_a_head_that_the_backbone_has_stays_with_it(tmp_path, resnet):
    found = recognise(file(tmp_path, resnet), expected=shapes(resnet))
    assert found.heads == {} and found.ignored == () and shapes(found.canonical) == shapes(resnet)


def test_moco_drops_the_other_encoder_and_the_queue(tmp_path, resnet):
    both = prefixed("module.encoder_q.", resnet) | prefixed("module.encoder_k.", resnet)
    content = {"state_dict": both | {"module.queue": torch.ones(2, 3), "module.queue_ptr": torch.zeros(1)}, "arch": "r"}
    found = recognise(file(tmp_path, content))
    assert (found.format, found.where, found.prefix) == ("moco", "state_dict", "module.encoder_q.")
    assert found.ignored == ("fc.*", "module.encoder_k.*", "module.queue", "module.queue_ptr")
    assert shapes(found.canonical) == {k: s for k, s in shapes(resnet).items() if not k.startswith("fc.")}


def test_the_other_network_of_a_file_is_named_and_taken_on_request(tmp_path, resnet):
    other = {key: tensor + 1 for key, tensor in resnet.items()}
    content = {"state_dict": prefixed("module.encoder_q.", resnet) | prefixed("module.encoder_k.", other)}
    found = recognise(file(tmp_path, content))
    assert (found.network, found.other_networks) == ("query", ("key",))
    asked = recognise(file(tmp_path, content), format="moco:key")
    assert (asked.format, asked.network, asked.other_networks) == ("moco", "key", ("query",))
    assert torch.equal(asked.canonical["conv1.weight"], resnet["conv1.weight"] + 1)
    assert "module.encoder_q.*" in asked.ignored and "fc.*" in asked.ignored
    alone = recognise(file(tmp_path, {"state_dict": prefixed("module.encoder_q.", resnet)}))
    assert (alone.network, alone.other_networks) == ("query", ())


def test_a_network_that_a_format_does_not_have_gets_the_nearest_name(tmp_path, resnet):
    with pytest.raises(UsageError, match="format moco has no network or variant 'kei'\nDid you mean 'key'"):
        recognise(file(tmp_path, resnet), format="moco:kei")
    with pytest.raises(UsageError, match="Its files hold only one"):
        recognise(file(tmp_path, resnet), format="torchvision:ema")


def test_of_timm_weights_and_their_average_the_average_is_taken_and_both_are_named(tmp_path, resnet):
    average = {key: tensor * 2 for key, tensor in resnet.items()}
    content = {"state_dict": dict(resnet), "state_dict_ema": average, "arch": "resnet18"}
    found = recognise(file(tmp_path, content))
    assert (found.format, found.where, found.network) == ("timm", "state_dict_ema", "ema")
    assert found.other_networks == ("plain",)
    plain = recognise(file(tmp_path, content), format="timm:plain")
    assert (plain.where, plain.other_networks) == ("state_dict", ("ema",))
    assert torch.equal(found.canonical["conv1.weight"], 2 * plain.canonical["conv1.weight"])


@pytest.mark.parametrize("prefix", ["_feature_blocks.", "base_model._feature_blocks."])
def test_vissl_heads_lie_beside_the_trunk(tmp_path, resnet, prefix):
    trunk = prefixed(prefix, {key: tensor for key, tensor in resnet.items() if not key.startswith("fc.")})
    model = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.ones(2, 2)}}
    found = recognise(file(tmp_path, {"classy_state_dict": {"base_model": {"model": model}}}))
    assert found.format == "vissl" and list(found.heads) == ["heads.0.clf.0.weight"] and found.ignored == ("heads.*",)
    assert found.where == "classy_state_dict.base_model.model.trunk" and "conv1.weight" in found.canonical


def test_the_users_own_network_is_plain_and_keeps_its_classifier(tmp_path):
    mine = {"body.0.weight": torch.ones(2, 2), "linear.weight": torch.ones(3, 2)}
    for content in (mine, {"net": mine}, {"state_dict": prefixed("module.", mine)}):
        found = recognise(file(tmp_path, content), expected=shapes(mine))
        assert found.format in ("plain", "module") and shapes(found.canonical) == shapes(mine)


def test_own_names_that_look_like_another_format_are_read_as_the_backbone_has_them(tmp_path, resnet):
    mine = prefixed("encoder_q.", resnet)
    found = recognise(file(tmp_path, mine), expected=shapes(mine))
    assert found.format == "plain" and shapes(found.canonical) == shapes(mine)


def test_own_files_are_known_by_their_marker_and_name_the_backbone(tmp_path, resnet):
    from sslbench.weights.reading.files import read

    path = save(tmp_path / "own.torch", resnet, backbone="resnet18", metadata={"epochs": 3})
    found = recognise(read(path))
    assert (found.format, found.backbone) == ("sslbench", "resnet18")
    assert all(torch.equal(found.canonical[key], resnet[key]) for key in resnet)


def test_a_newer_version_of_own_files_is_refused(tmp_path, resnet):
    with pytest.raises(WeightsError, match="version 2"):
        recognise(file(tmp_path, {"format": "sslbench", "version": 2, "state_dict": dict(resnet)}))


def test_junk_key_names_are_refused_with_the_first_of_them(tmp_path, resnet):
    junk = {f"xx{number}.yy": tensor for number, tensor in enumerate(resnet.values())}
    for expected in (None, shapes(resnet)):
        with pytest.raises(WeightsError, match=r"no known format: its 122 tensors are 'xx0\.yy', 'xx1\.yy'") as caught:
            recognise(file(tmp_path, junk), expected=expected)
        assert "--format" in caught.value.remedy and "--backbone" in caught.value.remedy


def test_known_names_behind_an_unknown_prefix_are_read(tmp_path, resnet):
    """As in the checkpoints of Lightning modules, which call their network as they like."""
    content = prefixed("net.backbone.", resnet) | {"net.probe.0.weight": torch.ones(2, 2), "criterion": torch.ones(1)}
    for format, expected in ((None, None), ("torchvision", None), (None, shapes(resnet))):
        found = recognise(file(tmp_path, {"state_dict": content}), format=format, expected=expected)
        assert (found.where, found.prefix) == ("state_dict", "net.backbone.")
        assert all(torch.equal(found.canonical[key], resnet[key]) for key in found.canonical)
        assert len(found.canonical) == (122 if expected else 120)
        assert found.ignored[-2:] == ("net.probe.*", "criterion") and "net.probe.0.weight" in found.dropped
        assert found.network_text == "behind 'net.backbone.'"


def test_own_names_behind_an_unknown_prefix_are_read_if_the_backbone_is_named(tmp_path):
    mine = {"body.0.weight": torch.ones(2, 2), "body.1.weight": torch.ones(3, 2)}
    found = recognise(file(tmp_path, {"state_dict": prefixed("model.", mine)}), expected=shapes(mine))
    assert found.format == "plain" and shapes(found.canonical) == shapes(mine)


def test_of_a_student_and_a_teacher_behind_prefixes_the_teacher_is_read_and_the_student_on_request(tmp_path, resnet):
    doubled = {key: 2 * tensor for key, tensor in resnet.items()}
    content = {"state_dict": prefixed("student.", resnet) | prefixed("teacher.", doubled)}
    teacher = recognise(file(tmp_path, content))
    assert torch.equal(teacher.canonical["conv1.weight"], doubled["conv1.weight"])
    assert teacher.ignored == ("fc.*", "student.*")
    way = "torchvision:state_dict.student."
    assert teacher.network_text == f"behind 'teacher.', not state_dict.student. (--format {way})"
    for format in (way, "torchvision:student.", "torchvision:student"):
        student = recognise(file(tmp_path, content), format=format)
        assert torch.equal(student.canonical["conv1.weight"], resnet["conv1.weight"])
    with pytest.raises(
        WeightsError, match=r"is not of format torchvision:teach\.: nothing lies at 'teach\.'"
    ) as caught:
        recognise(file(tmp_path, content), format="torchvision:teach.")
    assert caught.value.remedy == "Valid names: state_dict.student., state_dict.teacher.."


@pytest.mark.parametrize("places", [("online_backbone", "target_backbone"), ("target_backbone", "online_backbone")])
def test_of_two_dicts_the_one_that_authors_evaluate_is_read_in_any_order(tmp_path, resnet, places):
    networks = {"online_backbone": resnet, "target_backbone": {key: 2 * tensor for key, tensor in resnet.items()}}
    content = {place: prefixed("module.", networks[place]) for place in places}
    found = recognise(file(tmp_path, content))
    assert torch.equal(found.canonical["conv1.weight"], resnet["conv1.weight"])
    assert found.elsewhere == ("torchvision:target_backbone",) and "target_backbone" in found.network_text
    other = recognise(file(tmp_path, content), format="torchvision:target_backbone")
    assert torch.equal(other.canonical["conv1.weight"], 2 * resnet["conv1.weight"])


def test_of_networks_of_equal_right_the_user_selects_one(tmp_path, resnet):
    doubled = {key: 2 * tensor for key, tensor in resnet.items()}
    with pytest.raises(
        WeightsError, match=r"holds 2 networks: at 'a' \(torchvision\) and behind 'net\.' at 'b'"
    ) as caught:
        recognise(file(tmp_path, {"a": resnet, "b": prefixed("net.", doubled)}))
    assert caught.value.remedy == "Select one: --format torchvision:a or --format torchvision:b.net."
    copies = {"a": resnet, "b": prefixed("net.", {key: tensor.clone() for key, tensor in resnet.items()})}
    assert recognise(file(tmp_path, copies)).elsewhere == (), "equal networks are one"


def test_a_declared_place_comes_before_all_others_and_these_are_named(tmp_path, resnet):
    doubled = {key: 2 * tensor for key, tensor in resnet.items()}
    found = recognise(file(tmp_path, {"ema_state_dict": doubled, "state_dict": resnet}))  # as mmengine swaps them
    assert (found.where, found.elsewhere) == ("state_dict", ("torchvision:ema_state_dict",))


def test_the_name_of_a_network_is_that_of_its_place(tmp_path):
    """DINOv2's teacher is at the top of its hub file: a network elsewhere is not called so for that."""
    vit = {f"blocks.0.{key}": torch.ones(2) for key in ("norm1.weight", "mlp.fc1.weight", "attn.qkv.weight")}
    dinov2 = prefixed(
        "backbone.", vit | {"mask_token": torch.ones(1), "patch_embed.proj.weight": torch.ones(1, 1, 1, 1)}
    )
    content = {"model": prefixed("student.", dinov2) | prefixed("teacher.", {key: 2 * t for key, t in dinov2.items()})}
    found = recognise(file(tmp_path, content))
    assert (found.format, found.network, found.prefix) == ("dinov2", "teacher", "teacher.backbone.")
    student = recognise(file(tmp_path, content), format=found.elsewhere[0])
    assert (student.network, student.prefix) == ("student", "student.backbone.")
    assert recognise(file(tmp_path, {"net": dinov2})).network == ""


def test_names_of_wrappers_in_keys_do_not_count(tmp_path, resnet):
    moco = prefixed("_orig_mod.module.encoder_q.", resnet)
    found = recognise(file(tmp_path, {"state_dict": moco}))
    assert (found.format, found.network, found.prefix) == ("moco", "query", "_orig_mod.module.encoder_q.")
    averaged = recognise(file(tmp_path, prefixed("module.", resnet) | {"n_averaged": torch.tensor(3)}))
    assert averaged.ignored[-1] == "n_averaged" and torch.equal(averaged.canonical["bn1.bias"], resnet["bn1.bias"])
    own = {"_orig_mod.w": torch.ones(2), "module.b": torch.ones(3)}  # a network may have such names itself
    assert recognise(file(tmp_path, own), expected=shapes(own)).canonical.keys() == own.keys()
    assert (
        recognise(file(tmp_path, {"x": prefixed("module.", own)}), expected=shapes(own)).canonical.keys() == own.keys()
    )


def test_a_resnet_in_a_sequential_is_lightlys_without_its_prefix(tmp_path, resnet):
    numbers = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    layers = {
        f"{numbers[key.partition('.')[0]]}.{key.partition('.')[2]}": t for key, t in resnet.items() if key[:2] != "fc"
    }
    for content in (layers, {"trunk": prefixed("encoder.", layers)}):
        found = recognise(file(tmp_path, content))
        assert found.format == "lightly" and torch.equal(found.canonical["conv1.weight"], resnet["conv1.weight"])
    other = {**prefixed("backbone.", layers), **prefixed("backbone_momentum.", layers)}
    assert recognise(file(tmp_path, other)).other_networks == ("momentum",)
    alone = recognise(file(tmp_path, prefixed("backbone_momentum.", layers)), format="lightly:momentum")
    assert alone.other_networks == ()


def test_files_of_one_rank_are_named_with_the_way_out(tmp_path, resnet):
    flat = {"module._fsdp_wrapped_module._flat_param": torch.zeros(9)}
    with pytest.raises(
        WeightsError, match=r"FSDP's flat parameters .'module\._fsdp_wrapped_module\._flat_param'"
    ) as caught:
        recognise(file(tmp_path, {"model": flat}))
    assert "full_state_dict=True" in caught.value.remedy
    parts = {key: torch.zeros(0) for key in resnet}
    with pytest.raises(WeightsError, match="DeepSpeed without the whole tensors") as caught:
        recognise(file(tmp_path, {"module": parts, "ds_version": "0.14"}))
    assert "zero_to_fp32.py" in caught.value.remedy
    with pytest.raises(WeightsError, match=r"122 of them are empty, such as 'conv1\.weight'"):
        recognise(file(tmp_path, parts))


def test_names_that_are_no_networks_are_compared_with_the_places_of_the_file(tmp_path, resnet):
    with pytest.raises(UsageError, match="no network or variant 'onlin'\nDid you mean 'online'"):
        recognise(file(tmp_path, {"online": resnet}), format="torchvision:onlin")


def test_tensors_of_the_backbone_outside_the_prefix_are_missed(tmp_path, resnet):
    from sslbench.backbones.load import load_backbone

    content = prefixed("net.", resnet)
    content["layer4.1.conv2.weight"] = content.pop("net.layer4.1.conv2.weight")
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(WeightsError, match=r"layer4\.1\.conv2\.weight"):
        load_backbone(str(path), backbone="resnet18")


def test_the_closest_format_is_named_with_what_it_does_not_know(tmp_path, resnet):
    with pytest.raises(
        WeightsError, match=r"closest is torchvision, which does not know 1 of them, such as 'extra\.w'"
    ):
        recognise(file(tmp_path, dict(resnet) | {"extra.w": torch.ones(1)}))


def test_of_formats_that_know_as_many_keys_the_one_with_fewest_unknown_is_closest(tmp_path, monkeypatch):
    folder = tmp_path / "extra" / "model_converters"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SSLBENCH_PATH", str(folder.parent))
    for name, drop in (("few", "[]"), ("most", "['queue.{rest*}']")):
        rules = 'rules:\n  - ["net.{rest*}", "{rest*}"]\n'
        (folder / f"{name}.yaml").write_text(f"title: {name}\nsource: https://example.org\ndrop: {drop}\n{rules}")
    content = {f"net.{i}": torch.ones(1) for i in range(4)} | {"queue.a": torch.ones(1), "odd": torch.ones(1)}
    with pytest.raises(WeightsError, match="closest is most, which does not know 1 of them, such as 'odd'"):
        recognise(file(tmp_path, content))


def test_a_format_that_is_named_must_fit(tmp_path, resnet):
    with pytest.raises(WeightsError, match="is not of format moco"):
        recognise(file(tmp_path, resnet), format="moco")
    with pytest.raises(UsageError, match="Did you mean 'torchvision'"):
        recognise(file(tmp_path, resnet), format="torchvison")


def test_a_file_without_tensors_says_what_it_holds(tmp_path):
    with pytest.raises(WeightsError, match="holds no tensors; it holds 'epoch', 'args'"):
        recognise(file(tmp_path, {"epoch": 3, "args": {}}))


@pytest.fixture
def own_tables(tmp_path, monkeypatch):
    folder = tmp_path / "extra" / "model_converters"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SSLBENCH_PATH", str(folder.parent))
    for name in ("student", "teacher"):
        (folder / f"{name}.yaml").write_text(
            f"title: {name}\nsource: https://example.org\nstate_dict: [{name}]\n"
            'rules:\n  - ["net.{rest*}", "{rest*}"]\n'
        )


def test_two_formats_that_differ_are_an_error_and_the_user_decides(tmp_path, own_tables):
    content = {"student": {"net.w": torch.ones(2)}, "teacher": {"net.w": torch.zeros(2)}}
    with pytest.raises(
        WeightsError, match=r"two formats that disagree: student \(at student\) or teacher \(at teacher\)"
    ):
        recognise(file(tmp_path, content))
    assert recognise(file(tmp_path, content), format="teacher").canonical["w"].sum() == 0
    content["teacher"] = content["student"]
    assert recognise(file(tmp_path, content)).format == "student"


def test_the_backbones_names_decide_between_formats(tmp_path, own_tables):
    content = {"student": {"net.w": torch.ones(2)}, "teacher": {"net.v": torch.zeros(3)}}
    assert recognise(file(tmp_path, content), expected={"v": (3,)}).format == "teacher"


@pytest.mark.parametrize(
    ("keys", "prefix"),
    [([], ""), (["a.b.c"], "a.b."), (["a.b.c", "a.b.d"], "a.b."), (["a.bc", "a.bd"], "a."), (["a", "a.b"], "")],
)
def test_common_prefix_is_of_whole_segments(keys, prefix):
    assert common_prefix(keys) == prefix


def test_more_tensors_than_any_network_has_are_refused_at_once(tmp_path):
    crowd = {f"a.{i}": torch.zeros(0) for i in range(10_001)}
    with pytest.raises(WeightsError, match=r"w\.pth: 10,001 tensors in one dict, more than any network has"):
        recognise(file(tmp_path, {"state_dict": crowd}))


def test_no_other_network_is_taken_for_one_with_keys_that_nobody_knows(tmp_path, resnet):
    query = resnet | {"gate.weight": torch.ones(2)}
    content = {"state_dict": prefixed("module.encoder_q.", query) | prefixed("module.encoder_k.", resnet)}
    with pytest.raises(
        WeightsError, match=r"'query' has keys that format moco does not know.*encoder_q\.gate"
    ) as caught:
        recognise(file(tmp_path, content))
    assert caught.value.remedy == "--format moco:key reads another network of the file."
    assert recognise(file(tmp_path, content), format="moco:key").network == "key"


def test_a_network_without_a_prefix_beside_one_with_it_is_named_and_read(tmp_path, resnet):
    doubled = {key: 2 * tensor for key, tensor in resnet.items()}
    found = recognise(file(tmp_path, dict(resnet) | prefixed("teacher.", doubled)))
    assert found.prefix == "teacher." and found.elsewhere == ("torchvision:.",)
    flat = recognise(file(tmp_path, dict(resnet) | prefixed("teacher.", doubled)), format="torchvision:.")
    assert torch.equal(flat.canonical["conv1.weight"], resnet["conv1.weight"]) and flat.ignored == ("fc.*", "teacher.*")


def test_a_network_around_another_one_is_named_and_read_on_request(tmp_path, resnet):
    doubled = {key: 2 * tensor for key, tensor in resnet.items()}
    content = prefixed("net.", resnet) | prefixed("net.ema.", doubled)
    found = recognise(file(tmp_path, content))
    assert (found.prefix, found.others) == ("net.ema.", ("torchvision:net.",))
    outer = recognise(file(tmp_path, content), format="torchvision:net.")
    assert torch.equal(outer.canonical["conv1.weight"], resnet["conv1.weight"]) and "net.ema.*" in outer.ignored


@pytest.mark.parametrize("nested", [True, False])
def test_a_student_is_not_read_for_a_teacher_with_keys_that_nobody_knows(nested, tmp_path, resnet):
    networks = {"student": resnet, "teacher": resnet | {"gem.p": torch.ones(1)}}
    flat = {key: value for name, tensors in networks.items() for key, value in prefixed(f"{name}.", tensors).items()}
    content = networks if nested else flat
    with pytest.raises(WeightsError, match=r"'teacher\.?' has keys that no format knows, such as 'gem\.p'") as error:
        recognise(file(tmp_path, content))
    way = error.value.remedy.partition("--format ")[2]
    assert torch.equal(recognise(file(tmp_path, content), format=way).canonical["conv1.weight"], resnet["conv1.weight"])
    swapped = {"student": networks["teacher"], "teacher": resnet}
    assert recognise(file(tmp_path, swapped)).where == "teacher"


def test_a_key_that_begins_as_optimizer_does_may_hold_the_network(tmp_path, resnet):
    content = {"optimal_model": resnet, "optimizer": {"state": {}}, "optimizerD": dict(resnet)}
    assert recognise(file(tmp_path, content)).where == "optimal_model"


def test_a_network_of_which_tensors_were_left_out_says_so(tmp_path):
    tensors = torchvision.models.resnet18().state_dict()
    torch.save({name: t.to_sparse() if t.ndim == 4 else t for name, t in tensors.items()}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"20 tensors of unsupported kinds were left out, such as .*\(sparse\)"):
        recognise(read(tmp_path / "w.pth"))


def test_one_network_with_unknown_keys_is_not_called_several(tmp_path, resnet):
    renamed = {key.replace("fc.", "linear."): tensor for key, tensor in resnet.items()}
    with pytest.raises(WeightsError, match=r"no known backbone has the keys .*'linear\.weight'") as caught:
        recognise(file(tmp_path, {"state_dict": prefixed("module.", renamed)}))
    assert "several" not in str(caught.value) and "--backbone MODULE:FUNCTION" in str(caught.value)
