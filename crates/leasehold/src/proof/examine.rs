//! The doctor's selection of the questions, and the record of what it found.

use std::sync::Arc;

use super::cells::Cells;
use super::first_use::record;
use super::front_ends::{CHECK, Fronts};
use super::questions::{Questions, Selection};
use crate::diagnosis::{Examination, Examined, Finding};
use crate::register::Register;

/// Examines `register`, together with the endpoints that `examination` names. If `deletes` is set, a release deletes
/// objects, so conditional deletes matter.
pub(crate) async fn examine_register(
    register: &Arc<dyn Register>,
    deletes: bool,
    examination: &Examination,
) -> Examined {
    let fronts = match Fronts::open(register, &examination.endpoints).await {
        Ok(fronts) => fronts,
        Err(error) => {
            let finding = Finding::failed(CHECK, error.to_string());
            let mut examined = Examined::default();
            examined.push(Finding { help: error.help().to_vec(), ..finding });
            return examined;
        }
    };
    let mut found = register.examine().await;
    found.findings.extend_from_slice(fronts.findings());
    let named: Vec<_> = fronts.named().into_iter().map(Fronts::only).collect();
    let named: Vec<_> = named.iter().map(|front| front as &dyn Cells).collect();
    let selection = Selection::Doctor { thorough: examination.thorough, deletes };
    let found = examine(&fronts, &named, selection, found).await;
    Examined { releases_delete: deletes, ..found }
}

/// Adds the answers of `cells` to `found`, the findings of the store's own checks.
#[allow(dead_code, reason = "used by stores that are cargo features")]
pub(crate) async fn examine_cells(cells: &dyn Cells, thorough: bool, found: Examined) -> Examined {
    examine(cells, &[cells], Selection::Doctor { thorough, deletes: false }, found).await
}

/// Records the result at each of the `named` cells. Processes then use the store, or refuse it, until the doctor
/// examines it again.
pub(super) async fn examine(
    cells: &dyn Cells,
    named: &[&dyn Cells],
    selection: Selection,
    found: Examined,
) -> Examined {
    let mut questions = Questions::new(cells, selection, found);
    questions.ask().await;
    let verdicts = questions.verdicts();
    let mut found = questions.found();
    for front in named.iter().filter(|front| !front.profile().trusted) {
        for (subject, verdict) in &verdicts {
            let unsafe_ = verdict.as_ref().err().map(String::as_str);
            if let Err(error) = record(*front, *subject, unsafe_).await {
                found.push(Finding::not_recorded(&error));
            }
        }
    }
    found
}
