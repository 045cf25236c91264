//! The doctor's checks of a container: settings that affect its blobs.

use reqwest::header::HeaderMap;

use super::{AzureRegister, wire};
use crate::diagnosis::{Examined, Finding};
use crate::stores::over_http::{Operation, failed};

impl AzureRegister {
    pub(super) async fn examined(&self) -> Examined {
        let least = "the minimum that leasehold needs, on the container: with Entra ID, the role \"Storage Blob Data \
                     Contributor\"; with a shared access signature, sp=rwdl";
        let mut examined = Examined { least_permissions: vec![least.to_owned()], ..Examined::default() };
        examined.push(self.container().await);
        examined.push(self.soft_delete().await);
        examined
    }

    pub(super) async fn container(&self) -> Finding {
        const CHECK: &str = "container";
        match self.ask(Operation::Head, "", wire::container(&self.target)).await {
            Ok((headers, _)) => retention(&headers),
            Err(other) => Finding::unread(CHECK, "the container's properties", &failed(other)),
        }
    }

    async fn soft_delete(&self) -> Finding {
        const CHECK: &str = "soft delete";
        let answer = self.ask(Operation::Read, "", wire::service()).await;
        match answer.ok().and_then(|(_, body)| wire::Service::of(&body)) {
            None => Finding::not_applicable(
                CHECK,
                "not checked: this needs the account's properties, which locks do not need",
            ),
            Some(service) if !service.delete_retention_policy.enabled => {
                Finding::passed(CHECK, "no soft delete of blobs")
            }
            Some(_) => Finding::warning(CHECK, "soft delete keeps a copy of what every renewal overwrites")
                .with_help(
                    "locks are safe, but the copies cost storage: keep locks in an account without soft \
                    delete",
                ),
        }
    }
}

fn retention(headers: &HeaderMap) -> Finding {
    const CHECK: &str = "retention";
    let set =
        |name: &str| headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    if set("x-ms-has-immutability-policy") || set("x-ms-has-legal-hold") {
        return Finding::failed(
            CHECK,
            "the container has an immutability policy or a legal hold, which forbids overwriting",
        )
        .with_help("no lock could be renewed: use a container without one");
    }
    Finding::passed(CHECK, "no immutability policy and no legal hold")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::CheckStatus;

    #[test]
    fn a_container_that_keeps_its_blobs_is_found() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retention(&headers).verdict
        };
        assert_eq!(of("x-ms-has-legal-hold", "false"), CheckStatus::Passed);
        assert_eq!(of("x-ms-has-legal-hold", "True"), CheckStatus::Failed);
        assert_eq!(of("x-ms-has-immutability-policy", "true"), CheckStatus::Failed);
    }
}
