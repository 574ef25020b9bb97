// Typeset the mathematics of a page with KaTeX. The extension arithmatex writes \(...\) and \[...\] into .arithmatex.
for (const element of document.querySelectorAll(".arithmatex")) {
  const text = element.textContent;
  katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\["), strict: "error" });
}
