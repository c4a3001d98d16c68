// The API reference: Swagger UI over the server's own /openapi.json.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

SwaggerUIBundle({
  url: new URL("../openapi.json", import.meta.url).href,
  domNode: document.getElementById("api"),
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  validatorUrl: null, // else it asks another server
});
