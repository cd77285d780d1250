import { defineConfig } from "vite";

// Fixed names: the wheel lists them, and the server sends an ETag with each instead.
export default defineConfig({
  build: {
    outDir: "../nnl/console/static",
    emptyOutDir: true,
    target: ["chrome123", "firefox120", "safari17.5"],
    // What is inlined would be a data: address, which the page's security policy refuses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    rolldownOptions: {
      onwarn(warning, report) {
        // React Flow marks its files for servers that draw pages.
        if (warning.code !== "MODULE_LEVEL_DIRECTIVE") report(warning);
      },
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
});
