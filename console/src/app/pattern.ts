// Which page an address is of.

/** The named parts of a path after a pattern such as /p/:project/train/:trial?, or null. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.split("/").filter(Boolean);
  if (given.length > wanted.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index];
    if (value === undefined) {
      if (!part.endsWith("?")) return null;
    } else if (part.startsWith(":")) {
      found[part.slice(1).replace("?", "")] = decodeURIComponent(value);
    } else if (part !== value) {
      return null;
    }
  }
  return found;
}
