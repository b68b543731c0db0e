// starts Swagger UI: in a file of its own because the content security policy allows no inline script
SwaggerUIBundle({
  url: document.getElementById("swagger").dataset.openapi,
  dom_id: "#swagger",
  deepLinking: true,
  validatorUrl: null,
});
