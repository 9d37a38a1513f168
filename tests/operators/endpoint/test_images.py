"""Images at servers: what is sent of them, what their answers are kept under, and what costs a row."""

from __future__ import annotations

import base64
import errno
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from operators.endpoint.api.images import BodyImages, data_url
from operators.images.columns import PROMPT_IMAGES, limited
from operators.images.read import BadImage, read_image
from pipeline import run
from pipeline.api.errors import ConfigError, NodeFailed
from tests.operators.endpoint.fault_server import Fault, FaultServer

MOST = 10_000


def picture(kind: str, colour: tuple[int, ...] = (200, 30, 60), turn: int = 1) -> bytes:
    """A file of 16x8 pixels of two colours."""
    pixels = Image.new("RGB", (16, 8), colour)
    pixels.paste((0, 0, 255), (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = turn
    file = io.BytesIO()
    pixels.save(file, kind, **({"exif": exif} if turn != 1 else {}))
    return file.getvalue()


def pixels_at(url: str) -> np.ndarray:
    return read_image({"bytes": base64.b64decode(url.partition(",")[2])}, MOST)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, kind in enumerate(("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")):
        (folder / f"{i}.{kind.lower()}").write_bytes(picture(kind, (40 * i, 0, 0)))
    return folder


STEPS = """
steps:
  caption: {prompt: "See {{ image }}: what is it?", images: [image], columns: [prompt_text]}
  title: {prompt: "A title for: {{ caption }}"}
"""


def captioned(
    server: FaultServer, directory: Path, data: dict[str, Any], job: str = "generate", **settings: Any
) -> Any:
    known = {"model.url": server.url, "model.retries": 0, "max_error_rate": 1.0, "store.path": directory.parent / "s"}
    known |= {f"data.{key}": value for key, value in data.items()}
    known |= {key.replace("__", "."): value for key, value in settings.items()}
    return run(job, known, model="endpoint", directory=directory, progress="none", report=False)


def reasons(result: Any) -> list[str]:
    return list(result.rejects().collect()["reason"])


def sent(server: FaultServer) -> list[Any]:
    return [message["content"] for body in server.served for message in json.loads(body)["messages"]]


def test_a_folder_goes_to_a_server_as_data_urls_that_all_servers_read(tmp_path: Path, photos: Path) -> None:
    """Also the ones that not all of them can read. What is kept and told has none of it."""
    data = {"path": str(photos), "image_column": "image", "prompt_template": "What is it?"}
    with FaultServer() as server:
        result = captioned(server, tmp_path / "a", data, output__format="csv", output__prompt_text=True)
        contents = sent(server)
        captioned(server, tmp_path / "b", data)
        assert server.requests == 6
        (photos / "0.png").write_bytes(picture("PNG", (9, 9, 9)))
        captioned(server, tmp_path / "c", data)
        assert server.requests == 7, "an answer is kept under the content of its image"
    assert result.rows().select("path", "completion").collect()["path"].to_list() == sorted(
        p.name for p in photos.iterdir()
    )
    urls = [image["image_url"]["url"] for image, text in contents if text == {"type": "text", "text": "What is it?"}]
    assert {url.partition(";")[0] for url in urls} == {"data:image/png", "data:image/jpeg", "data:image/gif"}
    assert sorted(round(int(pixels_at(url)[0, 15, 0]) / 40) for url in urls) == [0, 1, 2, 3, 4, 5]
    kept = (tmp_path / "a/data/part-00000.csv").read_text()
    assert "base64" not in kept
    assert "<image>What is it?" in kept


def test_a_step_has_the_images_that_it_names_and_the_next_has_none(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "job.yaml").write_text(STEPS)
    with FaultServer() as server:
        data = {"path": str(photos / "0.png")}
        result = captioned(server, tmp_path / "a", data, job=str(tmp_path / "job.yaml"))
        contents = sent(server)
    row = result.rows().collect().to_dicts()[0]
    assert [type(content) for content in contents] == [list, str]
    assert [part["type"] for part in contents[0]] == ["text", "image_url", "text"]
    assert contents[1] == f"A title for: {row['caption']}"
    assert set(row) == {"image", "path", "row", "caption", "caption_prompt_text", "title"}
    assert json.loads(row["caption_prompt_text"]) == [{"role": "user", "content": "See <image>: what is it?"}]
    log = (tmp_path / "a/run.log").read_text()
    assert "prompts have none" not in log
    assert "base64" not in log


def test_the_text_of_a_message_is_cut_where_its_images_stand(tmp_path: Path) -> None:
    content = base64.b64encode(picture("PNG")).decode()
    part, png = ({"type": "image_url", "image_url": {"url": f"data:{k};base64,{content}"}} for k in ("", "image/png"))
    said = [{"type": "text", "text": text} for text in ("a", "b")]
    chats = [
        [{"role": "system", "content": "s"}, {"role": "user", "content": [said[0], part, part, said[1]]}],
        [{"role": "user", "content": "no image"}],
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"m": chat}) + "\n" for chat in chats))
    with FaultServer() as server:
        captioned(server, tmp_path / "a", {"path": str(tmp_path / "rows.jsonl"), "messages_column": "m"})
        assert sorted(sent(server), key=str) == sorted(["s", [said[0], png, png, said[1]], "no image"], key=str)


def test_an_image_that_cannot_be_read_costs_its_row_before_anything_is_sent(tmp_path: Path, photos: Path) -> None:
    (photos / "1.jpeg").write_bytes(b"<html>")
    (photos / "0.png").write_bytes(picture("PNG")[:-30])
    (photos / "2.gif").unlink()
    (photos / "2.gif").symlink_to("/etc/passwd")
    data = {"path": str(photos), "image_column": "image", "prompt_template": "x", "image_max_pixels": 200}
    with FaultServer() as server:
        result = captioned(server, tmp_path / "a", data)
        assert server.requests == 3
    cut, page, link = sorted(reasons(result), key=lambda reason: reason.partition("photos/")[2])
    assert f"column 'image': '{photos}/0.png' is damaged or cut off" in cut
    assert "an HTML page" in page
    assert "leads to /etc/passwd" in link
    with FaultServer() as server:
        result = captioned(server, tmp_path / "b", data | {"image_max_pixels": 100})
        assert server.requests == 0
    assert any("more than data.image_max_pixels=100" in reason for reason in reasons(result))


def test_a_server_that_reads_no_images_costs_the_row_and_is_quoted_without_them(tmp_path: Path, photos: Path) -> None:
    def refuse(number: int, body: dict[str, Any]) -> Fault:
        return Fault(400, {"error": {"message": f"no images: {body['messages']}"}}) if number else Fault(200)

    with FaultServer(refuse) as server:
        data = {"path": str(photos), "image_column": "image", "prompt_template": "x"}
        result = captioned(server, tmp_path / "a", data, model__concurrency=1)
    assert len(reasons(result)) == 5
    assert all(len(reason) < 1000 and "no images" in reason for reason in reasons(result))


def test_a_row_that_is_not_sent_says_nothing_of_the_server(tmp_path: Path, photos: Path) -> None:
    (photos / "5.bmp").write_bytes(picture("BMP")[:-9])
    data = {"path": str(photos), "image_column": "image", "prompt_template": "x"}
    with FaultServer(lambda number, body: Fault(400, {"error": {"message": "no"}})) as server:
        with pytest.raises(NodeFailed, match="5 requests in a row got no answer"):
            captioned(server, tmp_path / "a", data, model__concurrency=1)
        assert server.requests == 5


def test_identical_rows_share_no_error_of_an_image_that_has_changed(tmp_path: Path, monkeypatch: Any) -> None:
    """The copy in another file is sent."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(picture("PNG"))
    (tmp_path / "rows.csv").write_text("prompt,photo\nx,a.png\nx,b.png\n")
    body = BodyImages.body

    def changed(images: BodyImages, marked: bytes) -> bytes:
        (tmp_path / "a.png").write_bytes(picture("PNG", (1, 2, 3)))
        return body(images, marked)

    monkeypatch.setattr(BodyImages, "body", changed)
    with FaultServer() as server:
        data = {"path": str(tmp_path / "rows.csv"), "image_column": "photo"}
        result = captioned(server, tmp_path / "out", data, sampling__temperature=0)
        assert server.requests == 1
    assert result.rows().collect()["photo"].to_list() == ["b.png"]
    changed_file = f"column 'photo': '{tmp_path}/a.png': the file of the image has changed since the row was read"
    assert reasons(result) == [changed_file]


def test_completions_take_no_images(tmp_path: Path, photos: Path) -> None:
    data = {"path": str(photos), "image_column": "image", "prompt_template": "x"}
    with FaultServer() as server, pytest.raises(ConfigError, match=r"data.image_column cannot be with model.api=compl"):
        captioned(server, tmp_path / "a", data, model__api="completions")


def test_an_image_that_is_turned_by_its_metadata_is_sent_upright() -> None:
    turned = picture("JPEG", turn=6)
    upright = picture("JPEG")
    url = data_url({"bytes": turned}, MOST)
    assert url.startswith("data:image/jpeg;")
    assert read_image({"bytes": turned}, MOST).shape == (16, 8, 3)
    assert Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size == (8, 16)
    assert base64.b64decode(data_url({"bytes": upright}, MOST).partition(",")[2]) == upright


def test_a_file_that_changes_before_it_is_sent_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    path = tmp_path / "a.png"
    path.write_bytes(picture("PNG"))
    images = BodyImages([{"bytes": None, "path": str(path)}], limited(PROMPT_IMAGES, MOST, of_columns=True))
    path.write_bytes(picture("PNG", (1, 2, 3)))
    with pytest.raises(Exception, match="has changed since the row was read"):
        images.body(json.dumps({"messages": [{"role": "user", "content": "\ufdd1"}]}).encode())
    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(OSError, match="Too many open files"):
        images.body(b"{}")
    with pytest.raises(BadImage):
        BodyImages([{"bytes": b"x", "path": None}], limited(PROMPT_IMAGES, MOST, of_columns=True))
