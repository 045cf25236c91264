//! The description of the API: OpenAPI 3.1.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr, Response, Schema};
use utoipa::{Modify, OpenApi};

use super::{events, evict, fence, health, holds, locks, store};
use crate::app::PROBES;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Distributed locks over HTTP. Clients renew their holds themselves. In requests, durations are \
            text such as `30s` or `10m`. In responses, fields that end in `_ms` and `_us` are milliseconds and \
            microseconds. Clients must ignore fields that they do not know."
    ),
    servers((url = "/", description = "The server that this description is from")),
    tags(
        (name = "holds", description = "Acquire, renew and release locks"),
        (name = "locks", description = "See who holds locks, and evict holders"),
        (name = "server", description = "What the server can do, and probes")
    ),
    security((), ("token" = []), ("certificate" = [])),
    paths(
        holds::acquire::acquire,
        holds::renew,
        holds::renew_all,
        holds::release,
        holds::check,
        holds::withdraw,
        locks::list,
        locks::show,
        evict::evict,
        fence::fence,
        events::events,
        store::store,
        health::healthz,
        health::readyz,
    ),
    modifiers(&Completed)
)]
struct Description;

/// The description as JSON. Created once, because that takes a while.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| Description::openapi().to_json().unwrap_or_default());

pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION.as_str())
}

/// Problems that every request except a probe can get.
const COMMON_PROBLEMS: [(&str, &str); 8] = [
    ("400", "The request is wrong"),
    ("401", "The token is missing, unknown or expired"),
    ("403", "The caller does not have this right, or a page of another site sent the request"),
    ("421", "`Host` names another server"),
    ("429", "A limit was reached"),
    ("500", "A record cannot be read, or the server failed"),
    ("502", "The store refused the request"),
    ("503", "The store does not respond, or the server cannot check the token or is stopping"),
];

/// Problems that every request with a body can get.
const BODY_PROBLEMS: [(&str, &str); 4] = [
    ("408", "The body did not arrive in time"),
    ("409", "Other writers were faster"),
    ("413", "The body is too long"),
    ("415", "The body is not `application/json`"),
];

/// Adds what the attributes of the routes and types do not say.
struct Completed;

impl Modify for Completed {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut openapi.paths.paths {
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                if !PROBES.contains(&path.as_str()) {
                    add_problems(operation, &COMMON_PROBLEMS);
                }
                if operation.request_body.is_some() {
                    add_problems(operation, &BODY_PROBLEMS);
                }
                complete(operation);
            }
        }
        let Some(components) = &mut openapi.components else { return };
        let mut token = Http::new(HttpAuthScheme::Bearer);
        token.description =
            Some("A token of the access file, the JWT of an issuer, or the operator's token".to_owned());
        let certificate = SecurityScheme::MutualTls {
            description: Some("A client certificate, if the server has --client-ca".to_owned()),
            deprecated: None,
            extensions: None,
        };
        let schemes = [("token", SecurityScheme::Http(token)), ("certificate", certificate)];
        let schemes = schemes.map(|(name, scheme)| (name.to_owned(), scheme.into()));
        components.security_schemes.extend(schemes);
        for (name, schema) in &mut components.schemas {
            let RefOr::T(schema) = schema else { continue };
            // A null in a request means the same as a missing field.
            let is_response = !name.ends_with("Request");
            fields_of(schema, &mut |field, required, schema| {
                if is_response && !required && (name.as_str(), field) != ("Problem", "token") {
                    forbid_null(schema);
                }
                describe(schema);
            });
        }
    }
}

fn add_problems(operation: &mut Operation, problems: &[(&str, &str)]) {
    for (status, description) in problems {
        let responses = &mut operation.responses.responses;
        responses.entry((*status).to_owned()).or_insert_with(|| Response::new(*description).into());
    }
}

/// Adds to each problem of `operation` its body and headers. A header of a request may be missing, but not null.
fn complete(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if !status.starts_with(['4', '5']) {
            continue;
        }
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        response.content.insert("application/problem+json".to_owned(), content.into());
        let (name, description) = match status.as_str() {
            "401" => ("WWW-Authenticate", "`Bearer`"),
            "423" | "429" | "503" => ("Retry-After", "After how many seconds to repeat the request"),
            _ => continue,
        };
        let mut header = Header::default();
        header.description = Some(description.to_owned());
        response.headers.insert(name.to_owned(), header.into());
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && let Some(schema) = &mut parameter.schema
        {
            forbid_null(schema);
        }
    }
}

/// Calls `each` with the name of each field of `schema`, whether it is required, and its schema.
fn fields_of(schema: &mut Schema, each: &mut impl FnMut(&str, bool, &mut RefOr<Schema>)) {
    let parts = match schema {
        Schema::Object(object) => {
            let required = &object.required;
            for (field, schema) in &mut object.properties {
                each(field, required.contains(field), schema);
            }
            return;
        }
        Schema::AllOf(all) => &mut all.items,
        Schema::OneOf(one) => &mut one.items,
        _ => return,
    };
    for part in parts {
        if let RefOr::T(part) = part {
            fields_of(part, each);
        }
    }
}

/// Removes null from the values of `schema`.
fn forbid_null(schema: &mut RefOr<Schema>) {
    let RefOr::T(inner) = schema else { return };
    match inner {
        Schema::Object(object) => not_null(&mut object.schema_type),
        Schema::Array(array) => not_null(&mut array.schema_type),
        Schema::OneOf(one) => {
            one.items.retain(|item| !is_null(item));
            if let [only] = one.items.as_slice() {
                let only = only.clone();
                *schema = only;
            }
        }
        _ => {}
    }
}

fn not_null(schema_type: &mut SchemaType) {
    if let SchemaType::Array(types) = schema_type {
        types.retain(|kind| *kind != Type::Null);
        if let [only] = types.as_slice() {
            *schema_type = SchemaType::Type(only.clone());
        }
    }
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if object.schema_type == SchemaType::Type(Type::Null))
}

/// Gives a choice the description that one of its alternatives has, because generators do not read that one. Replaces
/// links to Rust items with their text.
fn describe(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::OneOf(one)) if one.description.is_none() => {
            let described = one.items.iter_mut().find_map(|item| match item {
                RefOr::Ref(one) if !one.description.is_empty() => Some(std::mem::take(&mut one.description)),
                _ => None,
            });
            one.description = described;
        }
        RefOr::T(Schema::Object(object)) => {
            if let Some(text) = &mut object.description {
                *text = without_links(text);
            }
        }
        _ => {}
    }
}

fn without_links(text: &str) -> String {
    let Some((before, after)) = text.split_once("](crate::") else { return text.to_owned() };
    let (start, linked) = before.rsplit_once('[').unwrap_or((before, ""));
    let rest = after.split_once(')').map_or("", |(_, rest)| rest);
    without_links(&format!("{start}{linked}{rest}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::{Map, Value};

    use super::*;

    fn description() -> Value {
        serde_json::to_value(Description::openapi()).unwrap()
    }

    /// Compares the description with a file, so that reviewers see every change. The version of the package is not in
    /// it.
    #[test]
    fn the_description_is_the_one_that_was_reviewed() {
        const UPDATE: &str = "UPDATE_OPENAPI";
        let mut description = Description::openapi();
        description.info.version.clear();
        let text = description.to_pretty_json().unwrap() + "\n";
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/openapi.json");
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let reviewed = std::fs::read_to_string(&file).unwrap_or_default();
        let differs = text.lines().zip(reviewed.lines()).position(|(new, old)| new != old);
        assert!(
            text == reviewed,
            "{} differs from line {:?} on; if this is meant, run the test again with {UPDATE}=1, and commit what it writes",
            file.display(),
            differs.map(|line| line + 1),
        );
    }

    fn operations(description: &Value) -> Vec<(&String, &Value)> {
        let paths = description["paths"].as_object().unwrap();
        paths
            .iter()
            .flat_map(|(path, item)| item.as_object().unwrap().values().map(move |one| (path, one)))
            .collect()
    }

    #[test]
    fn every_route_but_probes_describes_common_problems() {
        let description = description();
        assert!(description["components"]["schemas"]["Problem"].is_object());
        for (path, operation) in operations(&description) {
            if PROBES.contains(&path.as_str()) {
                assert!(operation["responses"].get("421").is_none(), "{path}");
                continue;
            }
            for (status, _) in COMMON_PROBLEMS {
                let content = &operation["responses"][status]["content"]["application/problem+json"];
                assert_eq!(content["schema"]["$ref"], "#/components/schemas/Problem", "{path}: {status}");
            }
        }
        let released = &description["paths"]["/v1/holds/release"]["post"]["responses"];
        assert_eq!(released["501"]["description"], "The store has no cooldowns");
        let unready = &description["paths"]["/readyz"]["get"]["responses"]["503"];
        assert!(unready["content"]["application/problem+json"].is_object());
    }

    /// Generators refuse a response without a description, and name methods by the id of the operation.
    #[test]
    fn everything_has_a_description_and_a_name_of_its_own() {
        let description = description();
        let mut ids = BTreeSet::new();
        for (path, operation) in operations(&description) {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id) && id.bytes().all(|byte| byte.is_ascii_alphabetic()), "{path}: {id}");
            assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{path}");
            let has_text = |one: &Value| one["description"].as_str().is_some_and(|text| !text.is_empty());
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(has_text(response), "{path}: {status}");
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(has_text(parameter), "{path}: {parameter}");
                assert!(!parameter["schema"]["type"].is_array(), "{path}: {parameter} may be null");
            }
        }
        for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
            assert!(schema["description"].is_string(), "{name}");
            for (field, schema) in fields(schema) {
                let text = schema["description"].as_str().unwrap_or_default();
                let refers = schema["$ref"].is_string();
                assert!(
                    (refers || !text.is_empty()) && !text.contains("](crate"),
                    "{name}.{field}: {schema}"
                );
                let is_words = field.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                assert!(is_words, "{name}.{field}");
                assert!(schema.get("default").is_none(), "{name}.{field}: generators read it as required");
            }
        }
    }

    fn fields(schema: &Value) -> Map<String, Value> {
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let parts = parts.chain([schema]).filter_map(|part| part["properties"].as_object());
        parts.flat_map(Clone::clone).collect()
    }

    #[test]
    fn links_to_rust_items_are_replaced_with_their_text() {
        assert_eq!(without_links("a [b](crate::B) c [`d`](crate::d::D)."), "a b c `d`.");
        assert_eq!(without_links("[b](https://b.example)"), "[b](https://b.example)");
    }
}
