// The keyboard of the editor. Text fields keep their own.

import { useEffect } from "react";
import * as commands from "./commands";
import { useEditor } from "./store";

export function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    target.closest("input, textarea, select, dialog, [contenteditable]") !== null
  );
}

/** Undo, redo and save work on every page of a project. */
export function useDocumentKeys(): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      const key = event.key.toLowerCase();
      const { undo, redo } = useEditor.getState();
      if (key === "s") commands.save();
      else if (isTyping(event.target)) return;
      else if (key === "z" && !event.shiftKey) undo();
      else if (key === "y" || (key === "z" && event.shiftKey)) redo();
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}

const WITH_CONTROL: Record<string, (shift: boolean) => void> = {
  a: commands.selectAll,
  d: commands.duplicate,
  g: (shift) => (shift ? commands.unpack() : commands.group()),
};

export function useEditingKeys(selectedEdges: ReadonlySet<string>): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (isTyping(event.target)) return;
      const { selected, select } = useEditor.getState();
      if (event.ctrlKey || event.metaKey) {
        const act = WITH_CONTROL[event.key.toLowerCase()];
        if (!act) return;
        act(event.shiftKey);
      } else if (event.key === "Delete" || event.key === "Backspace") {
        commands.remove(selected, selectedEdges);
      } else if (event.key === "Escape") {
        select([]);
      } else {
        return;
      }
      event.preventDefault();
    };
    const onCopy = (event: ClipboardEvent) => {
      // Text that is marked on the page is what the user means.
      if (isTyping(event.target) || window.getSelection()?.toString()) return;
      const text = commands.copyText();
      if (text === null) return;
      event.clipboardData?.setData("text/plain", text);
      commands.forgetPastes();
      if (event.type === "cut") commands.remove(useEditor.getState().selected, new Set());
      event.preventDefault();
    };
    const onPaste = (event: ClipboardEvent) => {
      if (isTyping(event.target)) return;
      if (commands.paste(event.clipboardData?.getData("text/plain") ?? "")) event.preventDefault();
    };
    window.addEventListener("keydown", onKey);
    document.addEventListener("copy", onCopy);
    document.addEventListener("cut", onCopy);
    document.addEventListener("paste", onPaste);
    return () => {
      window.removeEventListener("keydown", onKey);
      document.removeEventListener("copy", onCopy);
      document.removeEventListener("cut", onCopy);
      document.removeEventListener("paste", onPaste);
    };
  }, [selectedEdges]);
}
