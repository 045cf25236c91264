//! Tests objects with metadata. Reading such an object takes two requests.

use super::*;

const RESOURCE: &str = "{\"generation\":\"1795234395579324\",\"size\":\"7\",\"contentType\":\"text/plain\",\
                        \"contentLanguage\":\"\",\"metadata\":{\"Owner\":\"änn\"}}";

#[tokio::test]
async fn an_objects_content_and_metadata_are_of_one_generation() {
    let asked = Mutex::new(0);
    let server = Server::start(move |seen| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        Reply::Answer(match seen.line.split(' ').next() {
            // The object is overwritten between the first two requests.
            Some("GET") if seen.line.contains("alt=media") && *asked <= 2 => {
                answer("200 OK", "X-Goog-Generation: 1\r\n", "old")
            }
            Some("GET") if seen.line.contains("alt=media") => answer("200 OK", GENERATION, "{\"a\":1}"),
            Some("GET") => answer("200 OK", "", RESOURCE),
            _ => written(),
        })
    })
    .await;
    let register = GcsRegister { contents: Contents::Objects, ..register(&server) };
    let cell = register.read("x").await.unwrap().unwrap();
    assert_eq!((cell.value, cell.version), (value(), v1()));
    assert_eq!(cell.metadata.content_type.as_deref(), Some("text/plain"));
    assert_eq!(
        (cell.metadata.content_language.as_deref(), cell.metadata.user["Owner"].as_str()),
        (None, "änn")
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 3, "both at once, then the content of that generation");
    assert!(requests.iter().any(|seen| seen.line.contains("alt=media&generation=1795234395579324")));
    for request in requests.iter().filter(|request| request.line.contains("alt=media")) {
        assert!(request.has("accept-encoding: gzip"), "the bytes as they are stored: {request:?}");
    }
    let body = Body { bytes: value(), metadata: cell.metadata };
    register.write("x", Precondition::Version(&v1()), body).await.unwrap();
    let [post] = &server.requests()[..] else { panic!() };
    let body = String::from_utf8(post.body.clone()).unwrap();
    let resource = "{\"name\":\"pre/fix/x\",\"contentType\":\"text/plain\",\"metadata\":{\"Owner\":\"änn\"}}";
    assert!(body.contains(resource) && body.contains("Content-Type: text/plain\r\n\r\n{\"a\":1}"), "{body}");
}

#[tokio::test]
async fn content_whose_size_differs_from_the_stored_one_is_refused() {
    for (size, fine) in [("7", true), ("5", false), ("8", false)] {
        let server = Server::start(move |seen| {
            let said = format!("{{\"generation\":\"1\",\"size\":\"{size}\",\"contentEncoding\":\"gzip\"}}");
            let media = answer("200 OK", "X-Goog-Generation: 1\r\n", "{\"a\":1}");
            Reply::Answer(if seen.line.contains("alt=media") { media } else { answer("200 OK", "", &said) })
        })
        .await;
        let read = GcsRegister { contents: Contents::Objects, ..register(&server) }.read("x").await;
        assert_eq!(read.as_ref().is_ok(), fine, "{size}: {read:?}");
        assert!(fine || read.unwrap_err().fault().kind == ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn an_object_that_keeps_changing_is_a_transient_error() {
    let server = Server::start(|seen| {
        let media = answer("200 OK", "X-Goog-Generation: 1\r\n", "old");
        Reply::Answer(if seen.line.contains("alt=media") { media } else { answer("200 OK", "", RESOURCE) })
    })
    .await;
    let register = GcsRegister { contents: Contents::Objects, ..register(&server) };
    assert!(register.read("x").await.unwrap_err().is_transient());
    assert_eq!(server.requests().len(), 2 * MAX_READS);
}
