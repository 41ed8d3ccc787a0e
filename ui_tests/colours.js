// The contrast of every piece of text that can be seen, as the browser has painted it: [ratio, text, colours].
() => {
  const numbers = colour => {
    const found = colour.match(/[\d.]+/g).map(Number);
    return [...found.slice(0, 3), found.length > 3 ? found[3] : 1];
  };
  const light = ([r, g, b]) => {
    const part = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const behind = element => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(numbers(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), numbers(getComputedStyle(document.body).backgroundColor));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.tagName === 'title' || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const drawn = element instanceof SVGElement;
    const text = numbers(drawn ? style.fill : style.color);
    // A label in a drawing has an outline in the colour it stands on.
    const ground = drawn ? numbers(style.stroke) : behind(element);
    const [high, low] = [light(over(text, ground)), light(ground)].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), node.data.trim().slice(0, 40), `${drawn ? style.fill : style.color} on ${ground}`]);
  }
  return found;
}
