"""compile_report.html in a browser: drawn to scale, readable, interactive, without errors."""

import re
from itertools import combinations, product

import pytest
from support.browser import chromium, needs_browser, show
from support.programs import SYSTEM, Network, options_of
from support.reports import NAMES, RECTANGLES, report_of

from csrun.base.mode import ExecutionMode
from csrun.compiler import compile_model
from csrun.compiler.report.contents import render

pytestmark = needs_browser

WIDTHS = (1280, 600)
SMALLEST_TEXT_PX = 12

BOX = "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]"

#: Every text that is seen: [text, height, colour, the colour behind it].
TEXTS = r"""
const clear = "rgba(0, 0, 0, 0)";
const found = [], range = document.createRange();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement, style = getComputedStyle(parent);
  range.selectNodeContents(node);
  const height = range.getBoundingClientRect().height;
  if (!node.data.trim() || !height) continue;
  let behind = parent, background;
  while ((background = getComputedStyle(behind).backgroundColor) === clear)
    behind = behind.parentElement;
  const inside = parent.matches(".place text");
  const rect = inside && parent.parentElement.querySelector("rect");
  found.push([node.data.trim().slice(0, 40), height, inside ? style.fill : style.color,
              inside ? getComputedStyle(rect).fill : background]);
}
return found;
"""


@pytest.fixture
def browser(tmp_path):
    with chromium(tmp_path / "profile") as driver:
        yield driver
        assert driver.get_log("browser") == []


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "compile_report.html"
    path.write_text(render(report_of(tmp_path)))
    return path


def all_of(driver, selector):
    return driver.find_elements("css selector", selector)


def one_of(driver, selector):
    (found,) = all_of(driver, selector)
    return found


def box(driver, element):
    return driver.execute_script(BOX, element)


def layers_of(driver):
    return [cell.text for cell in all_of(driver, ".sortable tbody td:nth-child(2)")]


def luminance(colour):
    """Relative luminance of rgb(r, g, b). Source: WCAG 2.2, section 'relative luminance'."""
    assert re.fullmatch(r"rgb\(\d+, \d+, \d+\)", colour), colour
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Contrast ratio of two colours. Source: WCAG 2.2, section 'contrast ratio'."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_each_layer_has_its_rectangle_to_scale_and_apart(browser, page):
    show(browser, page, 1280)
    left, top, right, bottom = box(browser, one_of(browser, ".fabric"))
    scale = (right - left) / SYSTEM.fabric_width
    assert bottom - top == pytest.approx(scale * SYSTEM.fabric_height, abs=0.5)
    boxes = [box(browser, rect) for rect in all_of(browser, ".place rect")]
    for drawn, r in zip(boxes, RECTANGLES, strict=True):
        wanted = (r.x, r.y, r.x + r.width, r.y + r.height)
        placed = [drawn[0] - left, drawn[1] - top, drawn[2] - left, drawn[3] - top]
        assert placed == pytest.approx([scale * edge for edge in wanted], abs=0.5)
    for one, other in combinations(boxes, 2):
        common = [min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1)]
        assert min(common) < 0.1
    labels = [text.text for text in all_of(browser, ".place text")]
    assert labels == [NAMES[0], NAMES[1], "3"]  # the third's name is too long
    assert one_of(browser, ".beside text").text == NAMES[3]  # and the last's rectangle too small


def test_what_is_pointed_at_or_has_the_focus_is_named_and_lit(browser, page):
    from selenium.webdriver import ActionChains, Keys

    show(browser, page, 1280)
    first, second, *_, last = all_of(browser, ".place")
    browser.execute_script("arguments[0].focus()", first)
    ActionChains(browser).send_keys(Keys.TAB * 3).perform()
    assert browser.switch_to.active_element == last
    assert one_of(browser, "#pointed").text == f"{NAMES[3]}: 12 PEs, below 0.01% of the usable PEs"
    ActionChains(browser).move_to_element(second).perform()
    caption = "block_0.attention: 214,200 PEs, 28.73% of the usable PEs"
    assert second.find_element("css selector", "title").get_attribute("textContent") == caption
    assert one_of(browser, "#pointed").text == caption
    lit = [row.get_attribute("data-layers") for row in all_of(browser, "tr.lit")]
    assert lit == ["2", "2"]  # of the chart, and of the table
    ActionChains(browser).move_to_element(all_of(browser, "#memory tr")[1]).perform()
    assert one_of(browser, ".place.lit") == first


#: Every label of a drawing as [text, left, top, right, bottom, whether the drawing holds it].
LABELS = """
return [...arguments[0].querySelectorAll("text")].map((text) => {
  const b = text.getBoundingClientRect(), all = arguments[0].getBoundingClientRect();
  const held = b.left >= all.left && b.right <= all.right && b.top >= all.top
    && b.bottom <= all.bottom;
  return [text.textContent.trim(), b.left, b.top, b.right, b.bottom, held];
});
"""


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param((50,) * 10, id="10x50"),
        pytest.param((500, 300), id="500-300", marks=pytest.mark.slow),
    ],
)
def test_each_layer_of_fc_mnist_has_a_name_that_can_be_read(browser, tmp_path, hidden):
    network = Network((784, *hidden, 10), batch=128)
    for replicas, width in product((1, 4, 16), (*WIDTHS, 400, 1190)):
        options = options_of(replicas=replicas)
        executable = compile_model(network.trace(), tmp_path, options).executable
        show(browser, executable.directory / "compile_report.html", width)
        drawing, *others = all_of(browser, "svg")  # with several replicas, of one of them
        assert len(others) == (replicas > 1)
        labels = browser.execute_script(LABELS, drawing)
        assert {text for text, *_ in labels} == {layer.name for layer in executable.plan.layers}
        for text, left, top, right, bottom, held in labels:
            assert held, text
            assert min(right - left, bottom - top) >= SMALLEST_TEXT_PX, text
        for (_, *one, _), (_, *other, _) in combinations(labels, 2):
            common = [min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1)]
            assert min(common) < 2  # of a line's own spacing


def test_a_streaming_plan_shows_its_groups_on_their_way(browser, tmp_path):
    network = Network((1024, 1024, 2048, 700, 300, 5), batch=4)
    executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING)
    show(browser, executable.directory / "compile_report.html", 1280)
    assert not all_of(browser, "svg")
    visits = [visit.text for visit in all_of(browser, ".visit")]
    # The first layer's gradients are made without its weights.
    assert visits == [f"forward {g}" for g in range(4)] + [f"backward {g}" for g in (3, 2, 1)]
    columns = {visit.text: box(browser, visit) for visit in all_of(browser, ".visit")}
    kept = next(stay for stay in all_of(browser, ".stay") if stay.text == "group 2")
    assert box(browser, kept)[0] == columns["forward 2"][0]
    assert box(browser, kept)[2] == columns["backward 2"][2]
    ahead = all_of(browser, ".fetch")
    assert [fetch.text for fetch in ahead] == [f"prefetch group {g}" for g in (1, 2, 1)]
    assert box(browser, ahead[0])[0] == columns["forward 0"][0]
    rows = [" ".join(row.text.split()) for row in all_of(browser, "#stream tbody tr")]
    assert rows == [
        "0 dense 4.2 MB 0 B forward 0: fetched on demand",
        "1 dense_1 8.4 MB 5.74 MB forward 1: fetched ahead; backward 1: fetched ahead",
        "2 dense_2 5.74 MB 0 B forward 2: fetched ahead; backward 2: still resident",
        "3 dense_3, dense_4 847 kB 13.3 MB forward 3: fetched on demand; "
        "backward 3: still resident",
    ]


def test_a_group_that_is_pointed_at_lights_its_layers(browser, tmp_path):
    from selenium.webdriver import ActionChains

    page = tmp_path / "streaming.html"
    page.write_text(render(report_of(tmp_path, mode=ExecutionMode.WEIGHT_STREAMING)))
    show(browser, page, 1280)
    stay = next(each for each in all_of(browser, ".stay") if each.text == "group 1")
    ActionChains(browser).move_to_element(stay).perform()
    assert len(layers_of(browser)) == 4
    assert len(all_of(browser, "#layers tr.lit")) == 2  # 30 x 20 and 20 x 5; 12 x 40 and 40 x 30


def test_blocks_are_folded_until_they_are_asked_for(browser, tmp_path):
    names = ("h/0/up", "h/0/down", "h/1/up", "h/1/down")
    page = tmp_path / "compile_report.html"
    page.write_text(render(report_of(tmp_path, names)))
    show(browser, page, 1280)
    for table in ("#memory", "#layers"):
        first, second = all_of(browser, f"{table} .fold")
        assert [first.text, second.text] == ["h/0", "h/1"]
        seen = [row for row in all_of(browser, f"{table} tbody tr") if row.is_displayed()]
        assert len(seen) == 2
        weights = 4 * 12 * 40 + 192 + 4 * 40 * 30 + 128  # a bias fills whole lines of 64 bytes
        assert weights == 7040
        assert "7.04 kB" in seen[0].text
        second.click()
        assert (first.aria_role, second.get_attribute("aria-expanded")) == ("button", "true")
        seen = [row for row in all_of(browser, f"{table} tbody tr") if row.is_displayed()]
        assert len(seen) == 4
        assert [name in seen[2].text for name in names] == [False, False, True, False]


def test_sorting_takes_the_layers_out_of_their_blocks_and_puts_them_back(browser, tmp_path):
    page = tmp_path / "compile_report.html"
    page.write_text(render(report_of(tmp_path, ("h/0/up", "h/0/down", "h/1/up", "h/1/down"))))
    show(browser, page, 1280)
    number, name, *_ = all_of(browser, ".sortable thead button")
    name.click()
    assert layers_of(browser) == ["h/0/down", "h/0/up", "h/1/down", "h/1/up"]
    number.click()
    assert [text for text in layers_of(browser) if text] == ["h/0", "h/1"]
    number.click()
    assert layers_of(browser) == ["h/1/down", "h/1/up", "h/0/down", "h/0/up"]


def test_heads_sort_by_click_and_by_key(browser, page):
    from selenium.webdriver import Keys

    show(browser, page, 1280)
    heads = {head.text.split()[0]: head for head in all_of(browser, ".sortable thead th")}
    assert layers_of(browser) == list(NAMES)
    by_share = [NAMES[3], NAMES[1], NAMES[0], NAMES[2]]  # 1.6e-05, 0.287, 0.322, 0.386
    share = heads["Share"].find_element("css selector", "button")
    share.click()
    assert layers_of(browser) == by_share
    assert heads["Share"].get_attribute("aria-sort") == "ascending"
    share.send_keys(Keys.ENTER)
    assert layers_of(browser) == by_share[::-1]
    assert heads["Share"].get_attribute("aria-sort") == "descending"
    heads["Layer"].find_element("css selector", "button").send_keys(Keys.SPACE)
    assert layers_of(browser) == [NAMES[3], NAMES[1], NAMES[2], NAMES[0]]
    assert one_of(browser, "[aria-sort]") == heads["Layer"]


@pytest.mark.parametrize("mode", ExecutionMode)
def test_everything_is_readable_in_both_widths_and_schemes(browser, tmp_path, mode):
    page = tmp_path / "compile_report.html"
    page.write_text(render(report_of(tmp_path, mode=mode)))
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            show(browser, page, width, scheme)
            for listing in all_of(browser, "summary"):
                listing.click()
            texts = browser.execute_script(TEXTS)
            assert {"Compile report", "gradient"} <= {text for text, *_ in texts}
            assert NAMES[3] in one_of(browser, "body").text  # parts of it, around its slash
            assert not [text for text in texts if text[1] < SMALLEST_TEXT_PX]
            assert not [text for text in texts if contrast(*text[2:]) < 4.5]
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
        (behind,) = [luminance(text[3]) for text in texts if text[0] == "Compile report"]
        assert behind < 0.05 if scheme == "dark" else behind > 0.9
