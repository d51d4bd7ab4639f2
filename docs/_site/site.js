// Code and tables that are wider than the screen scroll by themselves: let the keyboard reach those, and only those.
const reach = () => {
  for (const box of document.querySelectorAll("article pre, article .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("DOMContentLoaded", reach);
addEventListener("resize", reach);
