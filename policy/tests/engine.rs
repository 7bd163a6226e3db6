//! What the sampling engine guarantees, held against the packed forward pass.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};
use trace_policy::active::Active;
use trace_policy::config::ModelConfig;
use trace_policy::engine::{Engine, EngineConfig, EngineError, Finish, GenRequest, GenResult};
use trace_policy::gates::{Capture, Composition, Member, Router};
use trace_policy::lora::{Lora, LoraConfig};
use trace_policy::model::Model;
use trace_policy::packed::Packed;
use trace_policy::sampling::Sampling;

const VOCABULARY: i64 = 300;
const STOP: i32 = 7;

fn model() -> Model {
    tch::set_num_threads(1);
    let config = ModelConfig {
        vocab_size: VOCABULARY,
        hidden_size: 32,
        num_hidden_layers: 3,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 8,
        intermediate_size: 48,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 2048,
    };
    let model = Model::random(config, 3, Device::Cpu).unwrap();
    // Logits of a trained model's spread, so that an error shows.
    let mut table = model.parameters().remove(0).1;
    let _ = table.g_mul_scalar_(15.0);
    model
}

fn lora(model: &Model, seed: u64) -> Lora {
    let config = LoraConfig::all_linears(4, 8.0);
    let lora = Lora::new(model.config(), config, seed, Device::Cpu).unwrap();
    tch::no_grad(|| {
        for (at, (name, mut tensor)) in lora.tensors().into_iter().enumerate() {
            if name.contains("lora_B") {
                tensor.copy_(&pseudo_random(&tensor.size(), seed + at as u64));
            }
        }
    });
    lora
}

/// Numbers in -1..1 that do not touch LibTorch's global generator.
fn pseudo_random(shape: &[i64], seed: u64) -> Tensor {
    let count: i64 = shape.iter().product();
    let number = |at: i64| (trace_policy::sampling::uniform(&[seed, 0, 0, 0], at as u64) * 2.0 - 1.0) as f32;
    Tensor::from_slice(&(0..count).map(number).collect::<Vec<f32>>()).view(shape)
}

fn composition(model: &Model) -> Composition {
    let router = Router::new(model.config(), 2, Device::Cpu);
    tch::no_grad(|| {
        for (at, (_, mut tensor)) in router.tensors().into_iter().enumerate() {
            tensor.copy_(&pseudo_random(&tensor.size(), 1000 + at as u64));
        }
    });
    let member = |name: &str, seed| Member { name: name.to_string(), lora: lora(model, seed) };
    Composition::new(model.config(), vec![member("one", 10), member("two", 20)], router).unwrap()
}

/// Ids that depend on the seed; none of them the stop id.
fn ids(seed: u64, count: usize) -> Vec<i32> {
    let number = |at| trace_policy::sampling::uniform(&[seed, 1, 0, 0], at as u64);
    (0..count).map(|at| 8 + (number(at) * (VOCABULARY - 8) as f64) as i32).collect()
}

fn request(id: u64, context: Vec<i32>, shared_prefix: usize) -> GenRequest {
    GenRequest {
        id,
        session: id,
        context,
        shared_prefix,
        max_tokens: 12,
        sampling: Sampling::default(),
        stop_ids: vec![STOP],
        stream: [5, id, 0, 0],
    }
}

fn engine(model: &Model, max_slots: usize) -> Engine {
    Engine::new(EngineConfig { max_slots, kv_budget_bytes: 1 << 30 }, model)
}

/// Steps until nothing is left, at most 2000 times; results by request.
fn finish(engine: &mut Engine, model: &Model, active: &Active, version: u64) -> BTreeMap<u64, GenResult> {
    let mut results = BTreeMap::new();
    for _ in 0..2000 {
        if engine.running() + engine.waiting() == 0 {
            return results;
        }
        results.extend(engine.step(model, active, version).unwrap().into_iter().map(|result| (result.id, result)));
    }
    panic!("the engine does not finish: {} running, {} waiting", engine.running(), engine.waiting());
}

fn run(engine: &mut Engine, model: &Model, active: &Active, requests: &[GenRequest]) -> BTreeMap<u64, GenResult> {
    requests.iter().for_each(|request| engine.admit(request.clone()).unwrap());
    finish(engine, model, active, 1)
}

/// Log-probs and modal slots of `tokens` after `context`, by one packed forward pass.
fn teacher_forced(
    model: &Model,
    active: &Active,
    context: &[i32],
    tokens: &[i32],
    temperature: f64,
) -> (Vec<f32>, Option<Vec<u8>>) {
    tch::no_grad(|| {
        let packed = Packed { prefix: vec![], branches: vec![[context, tokens].concat()] };
        let mut capture = Capture::default();
        let hidden = model.forward(&packed, active, Some(&mut capture)).unwrap();
        let predictors: Vec<i64> =
            (0..tokens.len()).map(|at| packed.predictor(0, context.len() + at).unwrap()).collect();
        let targets = Tensor::from_slice(tokens).to_kind(Kind::Int64);
        let at = Tensor::from_slice(&predictors);
        let logprobs = model.logprobs(&hidden.index_select(0, &at), &targets, temperature);
        let slots = match active {
            Active::Routed(composition) => capture.modal_slots(composition.router().slots()),
            _ => None,
        };
        let slots = slots.map(|slots| Vec::<i64>::try_from(slots.index_select(0, &at)).unwrap());
        let slots = slots.map(|slots| slots.into_iter().map(|slot| slot as u8).collect());
        (Vec::<f32>::try_from(logprobs).unwrap(), slots)
    })
}

/// Log-probs of every token after `context`, by one packed forward pass.
fn next_logprobs(model: &Model, context: &[i32]) -> Vec<f32> {
    tch::no_grad(|| {
        let packed = Packed { prefix: vec![], branches: vec![context.to_vec()] };
        let hidden = model.forward(&packed, &Active::Base, None).unwrap();
        let last = hidden.narrow(0, context.len() as i64 - 1, 1).expand([VOCABULARY, -1], false);
        let targets = Tensor::arange(VOCABULARY, (Kind::Int64, Device::Cpu));
        Vec::try_from(model.logprobs(&last, &targets, 1.0)).unwrap()
    })
}

fn assert_agrees(model: &Model, active: &Active, request: &GenRequest, result: &GenResult) {
    let (expected, slots) =
        teacher_forced(model, active, &request.context, &result.tokens, request.sampling.temperature);
    for (at, (got, expected)) in result.logprobs.iter().zip(&expected).enumerate() {
        assert!((got - expected).abs() < 1e-4, "request {} token {at}: {got} is not {expected}", request.id);
    }
    assert_eq!(result.logprobs.len(), result.tokens.len());
    assert_eq!(result.slots, slots);
    let last = *result.tokens.last().unwrap();
    assert!(!result.tokens[..result.tokens.len() - 1].contains(&STOP));
    match result.finish {
        Finish::Stop => assert_eq!(last, STOP),
        Finish::Length => assert!(last != STOP && result.tokens.len() == request.max_tokens),
        Finish::Cancelled => panic!("nothing was cancelled"),
    }
}

/// Sessions of several beginnings, of one token and of more than one pass, at two temperatures.
fn varied_requests() -> Vec<GenRequest> {
    let (first, second) = (ids(1, 90), ids(2, 33));
    let with = |prefix: &[i32], seed, own| [prefix, &ids(seed, own)].concat();
    let mut requests = vec![
        request(0, with(&first, 10, 40), first.len()),
        request(1, with(&second, 11, 1), second.len()),
        request(2, with(&first, 12, 5), first.len()),
        request(3, ids(13, 1), 0),
        request(4, ids(14, 700), 0),
        request(5, with(&second, 15, 120), second.len()),
        request(6, with(&first, 16, 17), first.len()),
    ];
    requests.iter_mut().skip(1).step_by(3).for_each(|request| request.sampling.temperature = 0.7);
    requests
}

/// Two turns of all sessions, the second after an observation, agree with the packed forward pass.
fn agrees_over_two_turns(active: &Active, model: &Model) {
    let mut engine = engine(model, 16);
    let mut requests = varied_requests();
    for turn in 0..3 {
        let results = run(&mut engine, model, active, &requests);
        assert_eq!(results.len(), requests.len());
        for request in &mut requests {
            let result = &results[&request.id];
            assert_agrees(model, active, request, result);
            request.context.extend(&result.tokens);
            request.context.extend(ids(100 + turn, 3 + 5 * request.id as usize));
        }
    }
}

#[test]
fn log_probs_of_the_base_are_those_of_the_packed_forward_pass() {
    let model = model();
    agrees_over_two_turns(&Active::Base, &model);
}

#[test]
fn log_probs_of_an_adapter_are_those_of_the_packed_forward_pass() {
    let model = model();
    let lora = lora(&model, 1);
    agrees_over_two_turns(&Active::Adapter(&lora), &model);
}

#[test]
fn log_probs_and_slots_of_gates_are_those_of_the_packed_forward_pass() {
    let model = model();
    let composition = composition(&model);
    agrees_over_two_turns(&Active::Routed(&composition), &model);
    let results = run(&mut engine(&model, 16), &model, &Active::Routed(&composition), &varied_requests());
    let used: std::collections::BTreeSet<u8> =
        results.values().flat_map(|result| result.slots.clone().unwrap()).collect();
    assert!(used.len() > 1, "the test's gates choose only {used:?}");
}

#[test]
fn the_same_admissions_give_the_same_bits_in_a_fresh_engine_and_in_a_used_one() {
    let model = model();
    let requests = varied_requests();
    let mut used = engine(&model, 5);
    let first = run(&mut used, &model, &Active::Base, &requests);
    assert_eq!(run(&mut engine(&model, 5), &model, &Active::Base, &requests), first);
    // Larger rows, kept from another wave, change nothing once its sessions are gone.
    run(&mut used, &model, &Active::Base, &[request(99, ids(1, 1500), 0)]);
    (0..100).for_each(|session| used.release(session));
    assert_eq!(used.sessions(), 0);
    assert_eq!(run(&mut used, &model, &Active::Base, &requests), first);
}

#[test]
fn what_a_session_samples_does_not_depend_on_its_neighbours() {
    let model = model();
    let requests = varied_requests();
    let together = run(&mut engine(&model, 16), &model, &Active::Base, &requests);
    for request in &requests {
        let alone = run(&mut engine(&model, 16), &model, &Active::Base, std::slice::from_ref(request));
        let (alone, together) = (&alone[&request.id], &together[&request.id]);
        assert_eq!(alone.tokens, together.tokens);
        assert!(alone.logprobs.iter().zip(&together.logprobs).all(|(a, b)| (a - b).abs() < 1e-4));
    }
}

#[test]
fn greedy_takes_the_likeliest_token_and_reports_its_log_prob_at_temperature_1() {
    let model = model();
    let mut request = request(1, ids(1, 30), 20);
    request.sampling = Sampling::GREEDY;
    let result = &run(&mut engine(&model, 4), &model, &Active::Base, std::slice::from_ref(&request))[&1];
    let mut context = request.context.clone();
    for (token, logprob) in result.tokens.iter().zip(&result.logprobs) {
        let all = next_logprobs(&model, &context);
        let best = all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(all[*token as usize], best);
        assert!((logprob - best).abs() < 1e-4);
        context.push(*token);
    }
}

#[test]
fn truncated_sampling_reports_renormalised_log_probs() {
    let model = model();
    let mut request = request(1, ids(1, 30), 20);
    request.sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 3 };
    let result = &run(&mut engine(&model, 4), &model, &Active::Base, std::slice::from_ref(&request))[&1];
    let mut context = request.context.clone();
    for (token, logprob) in result.tokens.iter().zip(&result.logprobs) {
        let mut all: Vec<(f32, i32)> = next_logprobs(&model, &context).into_iter().zip(0..).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let kept: f32 = all[..3].iter().map(|(logprob, _)| logprob.exp()).sum();
        let (full, _) = all[..3].iter().find(|(_, kept)| kept == token).expect("one of the three likeliest");
        assert!((logprob - (full - kept.ln())).abs() < 1e-4);
        context.push(*token);
    }
}

#[test]
fn keys_and_values_never_cross_versions() {
    let model = model();
    let (old, new) = (lora(&model, 1), lora(&model, 2));
    let mut first = request(1, ids(1, 60), 40);
    let mut engine = engine(&model, 4);
    engine.admit(first.clone()).unwrap();
    let results = finish(&mut engine, &model, &Active::Adapter(&old), 1);
    first.context.extend(&results[&1].tokens);
    first.context.extend(ids(2, 10));

    engine.admit(first.clone()).unwrap();
    let results = finish(&mut engine, &model, &Active::Adapter(&new), 2);
    assert_agrees(&model, &Active::Adapter(&new), &first, &results[&1]);

    // The check is a real one: under an unchanged version the old keys are still used.
    first.context.extend(&results[&1].tokens);
    engine.admit(first.clone()).unwrap();
    let stale = &finish(&mut engine, &model, &Active::Adapter(&old), 2)[&1];
    let (expected, _) = teacher_forced(&model, &Active::Adapter(&old), &first.context, &stale.tokens, 1.0);
    assert!((stale.logprobs[0] - expected[0]).abs() > 1e-3);
}

#[test]
fn a_turn_is_sampled_wholly_by_one_version() {
    let model = model();
    let mut engine = engine(&model, 4);
    engine.admit(request(1, ids(1, 10), 0)).unwrap();
    engine.step(&model, &Active::Base, 1).unwrap();
    let error = engine.step(&model, &Active::Base, 2).unwrap_err();
    assert!(matches!(error, EngineError::Version { running: 1, was: 1, now: 2 }), "{error}");
    // The turn goes on under its own version, and then the next version may begin.
    assert_eq!(finish(&mut engine, &model, &Active::Base, 1).len(), 1);
    engine.step(&model, &Active::Base, 2).unwrap();
}

#[test]
fn a_session_that_goes_on_from_other_ids_is_computed_anew_from_there() {
    let model = model();
    let mut engine = engine(&model, 4);
    let shared = ids(1, 20);
    let mut turn = request(1, [&shared[..], &ids(2, 30)].concat(), 20);
    run(&mut engine, &model, &Active::Base, std::slice::from_ref(&turn));
    // Same beginning, other middle (a template that rewrote history); then shorter; then another beginning.
    for context in [
        [&shared[..], &ids(2, 10), &ids(3, 25)].concat(),
        [&shared[..], &ids(2, 5)].concat(),
        [&ids(4, 20)[..], &ids(2, 5)].concat(),
    ] {
        turn.context = context;
        let results = run(&mut engine, &model, &Active::Base, std::slice::from_ref(&turn));
        assert_agrees(&model, &Active::Base, &turn, &results[&1]);
    }
}

#[test]
fn cancelling_frees_the_slot_and_returns_what_was_sampled() {
    let model = model();
    let mut engine = engine(&model, 1);
    let mut long = request(1, ids(1, 10), 0);
    (long.max_tokens, long.stop_ids) = (50, vec![]);
    engine.admit(long.clone()).unwrap();
    engine.admit(request(2, ids(2, 10), 0)).unwrap();
    engine.admit(request(3, ids(3, 10), 0)).unwrap();
    (0..4).for_each(|_| assert_eq!(engine.step(&model, &Active::Base, 1).unwrap(), []));
    assert_eq!((engine.running(), engine.waiting(), engine.sessions()), (1, 2, 1));

    let waiting = engine.cancel(3).unwrap();
    assert_eq!((waiting.finish, waiting.tokens.len()), (Finish::Cancelled, 0));
    let cut = engine.cancel(1).unwrap();
    assert_eq!((cut.finish, cut.tokens.len(), cut.logprobs.len()), (Finish::Cancelled, 4, 4));
    assert_eq!((engine.running(), engine.waiting(), engine.sessions()), (0, 1, 0));
    assert_eq!(engine.cancel(1), None);

    let rest = finish(&mut engine, &model, &Active::Base, 1);
    assert_agrees(&model, &Active::Base, &request(2, ids(2, 10), 0), &rest[&2]);
}

#[test]
fn more_sessions_than_slots_take_turns_and_stay_right() {
    let model = model();
    let mut engine = engine(&model, 2);
    let mut requests = varied_requests();
    for turn in 0..2 {
        let results = run(&mut engine, &model, &Active::Base, &requests);
        assert!(engine.sessions() <= 2);
        for request in &mut requests {
            assert_agrees(&model, &Active::Base, request, &results[&request.id]);
            request.context.extend(&results[&request.id].tokens);
            request.context.extend(ids(200 + turn, 4));
        }
    }
}

#[test]
fn keys_and_values_stay_within_the_budget() {
    let model = model();
    let token_bytes = 2 * 3 * 2 * 8 * 4;
    let requests = varied_requests();
    // The largest request alone needs 712 tokens, rounded up to 768.
    let kv_budget_bytes = 900 * token_bytes;
    let mut engine = Engine::new(EngineConfig { max_slots: 16, kv_budget_bytes }, &model);
    requests.iter().for_each(|request| engine.admit(request.clone()).unwrap());
    let (mut results, mut most) = (BTreeMap::new(), 0);
    for _ in 0..2000 {
        results.extend(engine.step(&model, &Active::Base, 1).unwrap().into_iter().map(|result| (result.id, result)));
        assert!(engine.kv_bytes() <= kv_budget_bytes);
        most = most.max(engine.running());
    }
    assert_eq!(results.len(), requests.len());
    assert!(most > 1, "small requests fit beside each other");
    requests.iter().for_each(|request| assert_agrees(&model, &Active::Base, request, &results[&request.id]));

    let error = engine.admit(request(50, ids(1, 1000), 0)).unwrap_err();
    assert!(matches!(error, EngineError::Budget { id: 50, .. }), "{error}");
}

#[test]
fn a_request_that_cannot_be_served_is_refused_with_its_reason() {
    let model = model();
    let mut engine = engine(&model, 4);
    let good = request(1, ids(1, 10), 4);
    let with = |change: &dyn Fn(&mut GenRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (bad, reason) in [
        (with(&|r| r.context.clear()), "empty"),
        (with(&|r| r.shared_prefix = 10), "shared prefix"),
        (with(&|r| r.max_tokens = 0), "max_tokens"),
        (with(&|r| r.max_tokens = 2048), "positions"),
        (with(&|r| r.context[3] = 300), "id 300"),
        (with(&|r| r.context[3] = -1), "id -1"),
        (with(&|r| r.sampling.temperature = -1.0), "temperature"),
    ] {
        let error = engine.admit(bad).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    engine.admit(good.clone()).unwrap();
    assert!(engine.admit(with(&|r| r.id = 2)).unwrap_err().to_string().contains("session 1"));
    engine.step(&model, &Active::Base, 1).unwrap();
    assert!(engine.admit(with(&|r| r.id = 2)).is_err());
}

#[test]
fn a_model_that_gives_no_numbers_is_an_error_and_no_sample() {
    let model = model();
    let mut engine = engine(&model, 4);
    engine.admit(request(1, ids(1, 10), 4)).unwrap();
    let (_, mut norm) = model.parameters().pop().unwrap();
    let _ = norm.fill_(f64::NAN);
    for _ in 0..2 {
        let error = engine.step(&model, &Active::Base, 1).unwrap_err();
        assert!(matches!(error, EngineError::NotFinite { id: 1, token: 0 }), "{error}");
    }
}
