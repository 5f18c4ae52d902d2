SwaggerUIBundle({
  url: "/schema/openapi.json",
  dom_id: "#page",
  deepLinking: true,
  validatorUrl: null, // otherwise it shows the document to a public validator
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
