"""Which requirement is built, how much of it, and which tests show it.

A test shows a requirement by its name: `test_W05_…`, `test_C15_L21_…`. tests/acceptance/test_requirements.py checks
both directions, and prints the lines to add or take away here. C, D, K, S and W are tables of numbered cases; L are the
rows of the table in seed 000, section 12, in order.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """`source` is where it is written, `built` what of it there is so far, `tests` are ids below tests/."""

    source: str
    built: str
    tests: tuple[str, ...]


REQUIREMENTS = {
    "C01": Requirement(
        "seed 004, 14.4 and 14.1",
        "all",
        (
            "acceptance/test_history.py::test_C01_L01_the_two_newest_ends_are_shown_in_full_whatever_they_are",
            "acceptance/test_history.py::test_C01_history_stands_in_the_order_of_the_questions_not_of_the_runs",
            "acceptance/test_history.py::test_C01_recent_runs_says_how_many_keep_their_process",
            "acceptance/test_history_oracle.py::test_C01_L01_L07_requests_of_any_session_show_what_the_oracle_expects",
            "acceptance/test_history_oracle.py::test_C01_a_session_with_every_end_in_it",
            "unit/context/test_place.py::test_C01_words_stand_where_protected_else_last_delivered_else_first_given",
        ),
    ),
    "C02": Requirement(
        "seed 004, 14.4",
        "all",
        (
            "acceptance/test_history.py::test_C02_L02_five_supplements_are_five_inputs_of_one_run_and_outlive_its_process",
            "acceptance/test_inputs.py::test_C02_five_supplements_are_five_inputs_of_one_run_and_reach_its_next_loop_in_order",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_every_input_is_where_the_account_says_whatever_happens",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_the_same_for_long",
        ),
    ),
    "C03": Requirement(
        "seed 004, 14.4",
        "the interface: a foreign session, role or id is refused with one error; there is one role yet",
        (
            "acceptance/test_reading.py::test_C03_L25_who_may_not_read_hears_the_same_whether_it_exists_or_not",
            "acceptance/test_reading.py::test_C03_a_missing_operation_of_an_own_session_tells_no_more_than_a_foreign_one",
            "integration/test_client.py::test_C03_L25_a_foreign_session_role_or_id_is_refused_alike_by_each_read_of_the_client",
            "unit/cli/test_app.py::test_C03_L25_a_foreign_session_is_refused_by_the_command_line_without_id_or_text",
        ),
    ),
    "C07": Requirement(
        "seed 004, 14.4",
        "all",
        (
            "acceptance/test_inputs.py::test_C07_what_is_no_output_delivers_nothing_and_an_empty_answer_delivers",
            "acceptance/test_receipt.py::test_C07_a_receipt_that_cannot_be_saved_ends_the_delivery_and_closes_the_stream",
            "acceptance/test_receipt.py::test_C07_R11_receipts_that_are_always_refused_end_the_role_by_the_policy",
            "acceptance/test_receipt.py::test_C07_R3_whoever_has_lost_the_run_writes_nothing_but_the_late_fact_of_its_own_attempt",
            "acceptance/test_receipt.py::test_C07_a_receipt_that_a_locked_database_does_not_take_leaves_what_came_with_its_attempt",
            "acceptance/test_receipt.py::test_C07_a_receipt_whose_connection_is_lost_for_good_leaves_what_came_with_its_attempt",
            "contract/test_adapters.py::test_C07_a_delivery_that_is_stopped_closes_the_stream_and_leaves_what_had_come",
            "unit/llm/test_scripted.py::test_C07_a_delivery_that_is_stopped_leaves_what_had_come",
            "acceptance/test_inputs.py::test_L14_C07_a_first_output_delivers_though_its_response_never_becomes_whole",
            "contract/test_adapters.py::test_C07_a_call_counts_by_its_name_and_its_arguments",
            "contract/test_adapters.py::test_C07_the_first_output_is_reported_once_and_with_its_kind",
            "unit/llm/test_responses_assembly.py::test_C07_what_counts_as_output_of_responses",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_every_input_is_where_the_account_says_whatever_happens",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_the_same_for_long",
        ),
    ),
    "C08": Requirement(
        "seed 004, 14.4",
        "all",
        (
            "integration/test_races_inputs.py::test_C08_a_first_output_and_the_end_of_the_run_in_both_orders",
            "integration/test_races_inputs.py::test_C08_a_first_output_that_is_saved_before_the_end_is_not_carried",
            "integration/test_races_inputs.py::test_C08_a_supplement_and_the_end_of_the_run_in_both_orders",
            "integration/test_races_inputs.py::test_C08_an_end_before_the_first_output_is_not_undone_by_it",
            "integration/test_races_inputs.py::test_C08_on_sqlite_threads_that_race_leave_each_supplement_in_one_place",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_every_input_is_where_the_account_says_whatever_happens",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_the_same_for_long",
        ),
    ),
    "C09": Requirement(
        "seed 004, 14.4",
        "all",
        (
            "acceptance/test_streams_killed.py::test_C09_D18_a_stream_whose_worker_is_killed_is_sent_again_and_nothing_of_it_is_joined",
            "contract/test_adapters.py::test_C09_what_a_broken_attempt_brought_is_in_no_later_answer",
        ),
    ),
    "C10": Requirement(
        "seed 004, 14.4",
        "all but hooks: saved but not appended, one record, one ticket, one batch; an attempt ends in one response",
        (
            "acceptance/test_delivery.py::test_C10_a_saved_answer_is_no_message_until_it_is_accepted",
            "acceptance/test_delivery.py::test_C10_an_accept_that_was_taken_over_meanwhile_writes_nothing",
            "acceptance/test_delivery.py::test_C10_repeated_wake_ups_of_an_accept_append_once_and_cost_one_ticket",
            "contract/test_adapters.py::test_C10_what_follows_the_final_frame_changes_nothing",
        ),
    ),
    "C11": Requirement(
        "seed 004, 14.4",
        "all",
        (
            "acceptance/test_delivery.py::test_C11_a_repeated_delivery_adds_nothing",
            "acceptance/test_delivery.py::test_C11_results_in_reverse_order_stand_in_the_order_of_the_calls",
        ),
    ),
    "C13": Requirement(
        "seed 004, 14.4",
        "all",
        ("acceptance/test_history.py::test_C13_a_question_that_cannot_fit_is_kept_and_named_apart_from_the_history",),
    ),
    "C15": Requirement(
        "seed 004, 14.4",
        "models and tools; compaction is not built yet",
        (
            "acceptance/test_recovery.py::test_C15_L21_a_model_answer_that_was_saved_is_not_asked_for_again",
            "acceptance/test_recovery.py::test_C15_L21_a_tool_result_that_was_saved_is_not_called_for_again",
        ),
    ),
    "C17": Requirement(
        "seed 004, 14.4",
        "all but what compaction adds",
        (
            "acceptance/test_inputs.py::test_C17_A5_a_supplement_that_the_final_answer_leaves_is_carried_and_starts_nothing",
            "acceptance/test_inputs.py::test_C17_a_supplement_after_the_cutoff_waits_for_the_next_loop",
        ),
    ),
    "C18": Requirement(
        "seed 004, 14.4 and 6.3",
        "all",
        (
            "acceptance/test_output.py::test_C18_a_correction_that_needs_another_ticket_exhausts_the_one_quota",
            "acceptance/test_output.py::test_C18_a_valid_answer_on_the_last_ticket_succeeds",
            "acceptance/test_output.py::test_C18_tool_loops_and_corrections_share_the_quota",
        ),
    ),
    "C19": Requirement(
        "seed 004, 14.4 and 7.2",
        "all",
        (
            "acceptance/test_results.py::test_C19_L25_a_reference_of_another_session_is_refused_like_one_of_nobody",
            "acceptance/test_results.py::test_C19_a_large_result_is_stored_whole_and_shown_as_the_range_that_it_names",
            "acceptance/test_results.py::test_C19_reading_on_is_a_new_operation_each_time_and_shows_nothing_that_was_not_asked_for",
            "unit/capabilities/test_result.py::test_C19_answer_of_result_read_is_never_previewed_itself",
            "unit/capabilities/test_result.py::test_C19_arguments_of_result_read",
            "unit/capabilities/test_result.py::test_C19_limit_below_one_character_reads_that_character",
            "unit/capabilities/test_result.py::test_C19_offset_inside_a_character_is_invalid",
            "unit/capabilities/test_result.py::test_C19_only_texts_above_64_kib_are_previewed",
            "unit/capabilities/test_result.py::test_C19_preview_and_the_slices_after_it_are_the_whole_text",
            "unit/capabilities/test_result.py::test_C19_preview_names_exactly_the_range_that_it_shows",
            "unit/capabilities/test_result.py::test_C19_reading_at_or_past_the_end_is_empty_and_ends",
            "unit/capabilities/test_result.py::test_C19_slices_one_after_the_other_are_the_whole_text",
            "unit/capabilities/test_result.py::test_C19_structured_result_is_previewed_as_json_text",
        ),
    ),
    "L01": Requirement(
        "seed 000, 12, row 1",
        "all",
        (
            "acceptance/test_history.py::test_C01_L01_the_two_newest_ends_are_shown_in_full_whatever_they_are",
            "acceptance/test_history_oracle.py::test_C01_L01_L07_requests_of_any_session_show_what_the_oracle_expects",
        ),
    ),
    "L02": Requirement(
        "seed 000, 12, row 2",
        "all",
        (
            "acceptance/test_history.py::test_C02_L02_five_supplements_are_five_inputs_of_one_run_and_outlive_its_process",
        ),
    ),
    "L07": Requirement(
        "seed 000, 12, row 7",
        "all",
        (
            "acceptance/test_history.py::test_L07_L12_L14_an_answer_that_broke_off_is_marked_material_of_recent_runs_and_no_decision",
            "acceptance/test_history.py::test_L07_a_request_is_rebuilt_byte_for_byte_after_its_inputs_have_moved_on",
            "acceptance/test_history.py::test_L07_the_audit_builds_every_request_with_its_history_and_finds_where_that_has_changed",
            "acceptance/test_history.py::test_L07_calls_that_never_got_a_result_are_closed_and_their_operations_stay_what_they_are",
            "acceptance/test_history_oracle.py::test_C01_L01_L07_requests_of_any_session_show_what_the_oracle_expects",
            "golden/test_rounds_golden.py::test_L07_W04_items_of_rounds_1_encode_to_the_recorded_bytes",
        ),
    ),
    "L08": Requirement(
        "seed 000, 12, row 8",
        "the history; the rest is C19",
        (
            "acceptance/test_results.py::test_L08_a_preview_in_the_history_is_not_unfolded_and_can_be_read_on_by_a_new_operation",
        ),
    ),
    "L12": Requirement(
        "seed 000, 12, row 12",
        "the history: a broken stream is marked material, never a message of the model",
        (
            "acceptance/test_history.py::test_L07_L12_L14_an_answer_that_broke_off_is_marked_material_of_recent_runs_and_no_decision",
            "acceptance/test_history.py::test_L12_an_answer_that_broke_off_cannot_speak_for_the_runtime",
        ),
    ),
    "L13": Requirement(
        "seed 000, 12, row 13",
        "all",
        (
            "acceptance/test_inputs.py::test_L13_a_claimed_supplement_without_a_first_output_goes_to_the_next_question_once",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_every_input_is_where_the_account_says_whatever_happens",
            "acceptance/test_delivery_oracle.py::test_C02_C07_C08_L13_the_same_for_long",
        ),
    ),
    "L14": Requirement(
        "seed 000, 12, row 14",
        "all",
        (
            "acceptance/test_inputs.py::test_L14_C07_a_first_output_delivers_though_its_response_never_becomes_whole",
            "acceptance/test_history.py::test_L07_L12_L14_an_answer_that_broke_off_is_marked_material_of_recent_runs_and_no_decision",
            "acceptance/test_history.py::test_L14_calls_of_an_answer_that_broke_off_are_shown_to_nobody",
        ),
    ),
    "L21": Requirement(
        "seed 000, 12, row 21",
        "models and tools; hooks and compaction are not built yet",
        (
            "acceptance/test_recovery.py::test_C15_L21_a_model_answer_that_was_saved_is_not_asked_for_again",
            "acceptance/test_recovery.py::test_C15_L21_a_tool_result_that_was_saved_is_not_called_for_again",
        ),
    ),
    "L22": Requirement(
        "seed 000, 12, row 22",
        "all",
        ("acceptance/test_recovery.py::test_L22_a_saved_member_is_reused_and_the_others_go_on_to_one_delivery",),
    ),
    "L23": Requirement(
        "seed 000, 12, row 23",
        "all",
        (
            "acceptance/test_recovery.py::test_L23_a_delivery_whose_successor_nobody_was_told_of_goes_on_and_adds_no_message",
        ),
    ),
    "L25": Requirement(
        "seed 000, 12, row 25",
        "reading under an authority, result.read",
        (
            "acceptance/test_reading.py::test_C03_L25_who_may_not_read_hears_the_same_whether_it_exists_or_not",
            "acceptance/test_results.py::test_C19_L25_a_reference_of_another_session_is_refused_like_one_of_nobody",
            "integration/test_client.py::test_C03_L25_a_foreign_session_role_or_id_is_refused_alike_by_each_read_of_the_client",
            "unit/cli/test_app.py::test_C03_L25_a_foreign_session_is_refused_by_the_command_line_without_id_or_text",
        ),
    ),
    "D01": Requirement(
        "CASES",
        "all; scaled, full size in the soak",
        (
            "integration/test_fleet_cases.py::test_D01_a_stream_of_several_lives_of_its_claim_is_one_call_one_claim_and_one_outcome",
            "soak/test_claims.py::test_D01_a_stream_of_ten_minutes_is_one_call_one_claim_and_one_outcome_however_often_it_is_redelivered",
        ),
    ),
    "D02": Requirement(
        "CASES",
        "all; scaled by a short claim, full size in the soak",
        (
            "acceptance/test_processes.py::test_D02_a_worker_that_was_stopped_for_longer_than_its_claim_is_fenced_and_nothing_of_it_is_seen",
            "integration/test_races_commits.py::test_D02_a_call_whose_holder_paused_stays_unknown_for_the_model",
            "integration/test_races_commits.py::test_D02_a_model_attempt_whose_holder_paused_is_fenced_and_its_fact_kept_once",
            "soak/test_claims.py::test_D02_a_worker_that_stood_still_for_two_lives_of_its_claim_is_fenced_and_nothing_of_it_is_seen",
        ),
    ),
    "D03": Requirement(
        "CASES",
        "all; full size in the soak",
        (
            "integration/test_chaos.py::test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained",
            "integration/test_fleet_cases.py::test_D03_what_a_killed_worker_held_is_dispatched_again_by_the_sweep",
            "soak/test_fleet_soak.py::test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing",
            "soak/test_fleet_soak.py::test_D03_every_one_of_ten_thousand_short_runs_ends_although_a_worker_is_killed_every_two_seconds",
        ),
    ),
    "D04": Requirement(
        "CASES",
        "all",
        (
            "integration/test_chaos.py::test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained",
            "integration/test_fleet_cases.py::test_D04_D21_all_slots_are_busy_again_soon_after_redis_has_lost_everything",
            "integration/test_lanes.py::test_D04_a_redis_that_is_gone_limits_nobody",
            "integration/test_redis_away.py::test_D04_killed_redis_is_treated_as_one_that_was_stopped",
            "integration/test_redis_away.py::test_D04_stopped_redis_is_no_error_and_is_used_again_when_it_is_back",
            "integration/test_redis_away.py::test_D04_subscription_survives_a_restart_and_finds_what_was_pushed_before_it_was_back",
            "soak/test_fleet_soak.py::test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing",
        ),
    ),
    "D05": Requirement(
        "CASES",
        "all; scaled by a short claim, full size in the soak",
        (
            "acceptance/test_processes.py::test_D05_a_parent_that_leaves_costs_the_step_alone_in_its_child_no_life",
            "acceptance/test_processes.py::test_D05_a_step_that_kills_its_process_is_parked_after_three_claims_and_other_runs_go_on",
            "soak/test_claims.py::test_D05_a_step_that_kills_whoever_takes_it_is_parked_after_three_claims_and_all_other_runs_end",
        ),
    ),
    "D06": Requirement(
        "CASES",
        "all; scaled",
        (
            "acceptance/test_durability.py::test_D06_duplicate_messages_for_claimed_finished_and_vanished_rows_change_nothing",
            "integration/test_fleet.py::test_D06_a_message_of_no_known_form_is_dropped_without_its_words_and_ends_no_worker",
            "integration/test_fleet.py::test_D06_duplicate_and_foreign_messages_change_nothing_and_all_runs_end_right",
            "integration/test_fleet_cases.py::test_D06_each_of_many_duplicates_is_taken_once_and_changes_nothing",
            "integration/test_races_claims.py::test_D06_duplicate_wake_ups_end_without_a_trace",
        ),
    ),
    "D07": Requirement(
        "CASES",
        "all; the worker is blocked for as long as the test lasts",
        (
            "integration/test_fleet_cases.py::test_D07_a_new_run_begins_at_once_although_a_worker_that_listens_stands_still",
            "integration/test_fleet_cases.py::test_D07_a_new_run_begins_at_once_on_the_idle_one_of_two_workers",
        ),
    ),
    "D08": Requirement(
        "CASES",
        "all; scaled",
        (
            "integration/test_chaos.py::test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained",
            "integration/test_fleet.py::test_D08_a_worker_that_is_ended_as_soon_as_it_has_begun_says_farewell_like_any_other",
            "integration/test_fleet_cases.py::test_D08_streams_of_a_drained_worker_go_on_elsewhere_at_once_and_not_after_their_claims",
            "soak/test_fleet_soak.py::test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing",
        ),
    ),
    "D09": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_durability.py::test_D09_a_reaper_that_writes_after_the_step_completed_meets_no_row",
            "integration/test_races_claims.py::test_D09_a_sweep_passes_by_a_row_that_its_holder_is_just_writing",
            "integration/test_races_claims.py::test_D09_what_the_reaper_read_has_changed_when_it_writes",
        ),
    ),
    "D10": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_versions.py::test_D10_a_row_of_a_newer_step_or_version_is_put_back_by_older_code_and_costs_nothing",
            "integration/test_fleet.py::test_D10_a_row_of_another_version_is_put_back_and_runs_when_somebody_knows_it",
        ),
    ),
    "D11": Requirement(
        "CASES",
        "all; scaled to a few restarts under load, full size in the soak",
        (
            "acceptance/test_processes.py::test_D11_no_run_is_left_behind_when_the_database_restarts_again_and_again",
            "integration/test_chaos.py::test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained",
            "soak/test_fleet_soak.py::test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing",
            "soak/test_fleet_soak.py::test_D11_no_run_is_left_behind_when_the_database_restarts_every_few_seconds_for_minutes",
        ),
    ),
    "D12": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_durability.py::test_D12_sixteen_sweepers_on_dead_claims_make_one_claim_of_each",
            "integration/test_races_upkeep.py::test_D12_sixteen_sweepers_of_a_thousand_dead_claims_make_one_claim_each",
        ),
    ),
    "D13": Requirement(
        "CASES",
        "all; persisted bodies of version 1",
        (
            "acceptance/test_versions.py::test_D13_a_run_that_waits_is_resumed_by_newer_code_and_nothing_is_done_again",
            "golden/test_bodies_golden.py::test_D13_bodies_of_version_1_are_written_as_recorded_and_read_as_written",
            "golden/test_bodies_golden.py::test_D13_every_recorded_body_belongs_to_a_test",
            "golden/test_bodies_golden.py::test_D13_partial_answers_of_version_1_are_written_as_recorded",
        ),
    ),
    "D14": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_growth.py::test_D14_a_hundred_calls_and_200_000_tokens_grow_the_database_by_less_than_twice_the_transcript",
            "integration/test_fleet_cases.py::test_D14_no_message_of_a_run_of_200_000_tokens_and_a_hundred_calls_has_a_kilobyte",
            "unit/broker/test_publisher.py::test_D14_every_step_s_wake_up_stays_below_a_kilobyte",
        ),
    ),
    "D15": Requirement(
        "CASES",
        "all",
        (
            "integration/test_fleet_cases.py::test_D15_two_hundred_streams_live_on_twenty_connections_and_hold_none_while_they_wait",
        ),
    ),
    "D16": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_durability.py::test_D16_a_worker_on_an_empty_database_refuses_and_names_the_remedy",
            "acceptance/test_durability.py::test_D16_a_worker_on_another_versions_schema_runs_nothing_and_names_the_remedy",
            "acceptance/test_durability.py::test_D16_a_worker_without_a_database_refuses_and_says_why",
            "contract/test_schema.py::test_D16_a_database_that_is_away_is_refused",
            "contract/test_schema.py::test_D16_a_schema_of_another_version_is_refused_and_named",
            "contract/test_schema.py::test_D16_a_schema_that_is_behind_is_refused_and_named",
            "contract/test_schema.py::test_D16_an_empty_database_is_refused_with_what_to_do",
            "integration/test_fleet.py::test_D16_a_worker_refuses_a_database_that_is_not_ready_and_says_why",
            "integration/test_schema.py::test_D16_a_client_on_an_empty_database_is_told_to_migrate",
            "integration/test_schema.py::test_D16_a_database_that_cannot_be_used_is_named_without_its_password",
            "integration/test_schema.py::test_D16_a_schema_of_a_later_version_is_left_alone",
            "integration/test_schema.py::test_D16_an_empty_postgres_is_refused_until_it_is_migrated",
            "integration/test_start.py::test_D16_a_worker_that_waits_for_its_database_can_be_told_to_end",
            "integration/test_start.py::test_D16_nobody_waits_for_a_database_that_does_not_exist_or_was_never_migrated",
            "integration/test_start.py::test_D16_only_a_server_that_does_not_answer_is_called_unreachable",
            "integration/test_start.py::test_D16_whoever_may_not_wait_for_the_database_leaves_at_once",
            "integration/test_start.py::test_D16_whoever_starts_before_the_database_waits_for_it_and_serves",
            "unit/storage/test_unreachable.py::test_D16_a_refusal_is_not_waited_for",
            "unit/storage/test_unreachable.py::test_D16_a_server_that_is_away_or_starting_may_be_waited_for",
            "unit/storage/test_unreachable.py::test_D16_what_is_no_error_of_the_database_is_not_waited_for",
            "unit/test_fleet_process.py::test_D16_a_database_that_cannot_be_reached_is_waited_for_within_the_bound",
            "unit/test_fleet_process.py::test_D16_a_process_does_not_begin_on_a_database_without_a_schema",
            "unit/test_fleet_process.py::test_D16_a_refusal_or_a_signal_ends_the_wait_for_a_database",
        ),
    ),
    "D17": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_stopping.py::test_D17_a_queued_run_is_cancelled_by_its_row_alone",
            "acceptance/test_stopping.py::test_D17_a_stop_closes_the_stream_frees_the_slot_and_survives_a_restart_of_everything",
            "acceptance/test_stopping.py::test_D17_a_stop_while_a_retry_waits_ends_the_run_and_nothing_is_sent_again",
            "contract/test_adapters.py::test_D17_a_cancel_from_another_thread_closes_a_blocked_stream",
            "contract/test_adapters.py::test_D17_nothing_that_arrived_is_handled_after_the_cancel",
            "integration/test_client.py::test_D17_a_queued_run_is_cancelled_without_a_worker_having_seen_it",
            "integration/test_client.py::test_D17_a_stop_closes_the_stream_and_cancelled_survives_reopening",
            "unit/llm/test_openai_chat_limits.py::test_D17_a_cancel_from_another_thread_closes_a_blocked_stream",
            "unit/llm/test_openai_chat_limits.py::test_D17_nothing_that_arrived_is_handled_after_the_cancel",
            "unit/llm/test_transport.py::test_D17_a_cancel_wakes_a_blocked_tls_read",
            "unit/llm/test_transport.py::test_D17_a_cancel_wakes_a_tls_handshake_that_nobody_answers",
        ),
    ),
    "D18": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_output.py::test_D18_a_crash_while_an_answer_is_judged_corrects_it_once",
            "acceptance/test_recovery.py::test_D18_a_crash_around_a_call_that_must_not_be_repeated_makes_it_at_most_once_and_says_unknown",
            "acceptance/test_recovery.py::test_D18_a_crash_around_a_model_attempt_sends_the_same_bytes_at_most_once_more",
            "acceptance/test_recovery.py::test_D18_a_crash_around_an_idempotent_call_has_its_effect_once",
            "acceptance/test_recovery.py::test_D18_a_crash_in_a_step_without_an_effect_repeats_no_effect",
            "acceptance/test_streams_killed.py::test_C09_D18_a_stream_whose_worker_is_killed_is_sent_again_and_nothing_of_it_is_joined",
        ),
    ),
    "D19": Requirement(
        "CASES",
        "all",
        ("integration/test_fleet.py::test_D19_no_beat_one_and_two_recover_a_dead_process_row_the_same",),
    ),
    "D20": Requirement(
        "CASES",
        "all; scaled",
        (
            "integration/test_fleet.py::test_D20_with_a_dead_broker_every_step_still_runs",
            "integration/test_fleet_cases.py::test_D20_what_was_published_to_nobody_runs_and_a_message_of_a_row_that_never_was_does_nothing",
        ),
    ),
    "D21": Requirement(
        "CASES",
        "all",
        (
            "integration/test_chaos.py::test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained",
            "integration/test_fleet_cases.py::test_D04_D21_all_slots_are_busy_again_soon_after_redis_has_lost_everything",
            "integration/test_redis_away.py::test_D21_flushed_redis_knows_nothing_and_serves_on",
            "soak/test_fleet_soak.py::test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing",
        ),
    ),
    "D22": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_durability.py::test_D22_a_workers_wrong_clock_takes_no_claim_over_and_loses_none",
            "integration/test_races_claims.py::test_D22_a_worker_whose_clock_is_wrong_takes_nothing_over_early",
            "integration/test_races_claims.py::test_D22_processes_with_different_clocks_agree_on_what_is_due",
            "unit/llm/test_http_failures.py::test_D22_a_date_without_a_zone_is_no_date_of_this_machines_zone",
            "unit/llm/test_http_failures.py::test_D22_a_date_is_compared_with_the_answers_own_clock",
        ),
    ),
    "D23": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_provider.py::test_D23_a_wait_beyond_the_deadline_ends_the_run_at_once",
            "acceptance/test_provider.py::test_D23_a_wish_beyond_all_bounds_ends_the_run_at_once",
            "acceptance/test_provider.py::test_D23_an_odd_wish_is_kept_as_far_as_it_is_one_and_is_the_policys_wait_otherwise",
            "unit/llm/test_http_failures.py::test_D23_whatever_the_header_says_the_wait_is_bounded",
            "acceptance/test_provider.py::test_D23_each_attempt_is_one_request_and_the_wait_grows_with_jitter",
            "acceptance/test_provider.py::test_D23_no_slot_is_held_while_a_run_waits_for_its_provider",
            "acceptance/test_provider.py::test_D23_retry_after_is_kept_exactly_plus_at_most_the_first_delay",
            "contract/test_adapters.py::test_D23_a_refusal_has_the_class_of_its_status_and_code",
            "contract/test_adapters.py::test_D23_each_attempt_is_one_request_and_hands_on_what_retry_after_says",
            "unit/llm/test_openai_chat_limits.py::test_D23_a_rate_limit_has_its_own_class",
            "unit/llm/test_openai_chat_limits.py::test_D23_each_attempt_is_one_request_and_hands_on_what_retry_after_says",
            "unit/llm/test_profiles.py::test_D23_the_codes_of_a_provider_decide_before_the_common_tables",
        ),
    ),
    "D24": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_durability.py::test_D24_malformed_rows_of_a_sweep_batch_are_parked_and_the_others_proceed",
            "integration/test_races_upkeep.py::test_D24_a_row_of_a_run_that_is_over_backs_off_and_is_parked",
            "integration/test_races_upkeep.py::test_D24_malformed_rows_stop_nobody_and_are_parked_or_handed_back",
        ),
    ),
    "W01": Requirement(
        "CASES",
        "all but compaction, which is not built yet",
        (
            "acceptance/test_wire.py::test_W01_a_window_that_ends_inside_of_three_parallel_results_sends_all_of_them_or_nothing",
            "acceptance/test_wire.py::test_W01_every_request_that_was_ever_frozen_pairs_each_call_with_its_result",
            "acceptance/test_wire.py::test_W01_the_last_loop_ends_with_its_results_delivered_and_no_orphan",
        ),
    ),
    "W02": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_delivery.py::test_W02_three_results_that_end_in_reverse_are_adjacent_in_order_and_the_same_bytes_again",
        ),
    ),
    "W03": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_wire.py::test_W03_calls_that_share_a_provider_id_have_ids_of_ours_and_are_each_executed_once",
            "unit/llm/test_chat_assembly.py::test_W03_equal_provider_ids_on_two_indexes_are_two_calls",
            "unit/llm/test_chat_assembly.py::test_W03_equal_provider_ids_without_indexes_are_two_calls",
            "unit/llm/test_discover_and_probe.py::test_W03_ids_are_looked_at",
            "unit/llm/test_responses_encoding.py::test_W03_two_calls_with_one_id_keep_it_on_the_wire",
        ),
    ),
    "W04": Requirement(
        "CASES",
        "the encoding of blank answers",
        (
            "acceptance/test_history.py::test_W04_empty_answers_are_valid_for_strict_providers_in_the_history_too",
            "golden/test_rounds_golden.py::test_L07_W04_items_of_rounds_1_encode_to_the_recorded_bytes",
            "unit/llm/test_chat_encoding.py::test_W04_a_blank_answer_with_calls_has_no_content",
            "unit/llm/test_chat_encoding.py::test_W04_a_blank_answer_without_calls_shows_visible_text",
        ),
    ),
    "W05": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_wire.py::test_W05_broken_arguments_are_answered_kept_as_they_are_and_shown_as_valid_json",
            "unit/capabilities/test_arguments.py::test_W05_broken_arguments_tell_the_model_what_to_fix",
            "unit/capabilities/test_arguments.py::test_W05_nesting_bomb_is_refused_and_harms_nobody",
            "unit/llm/test_chat_encoding.py::test_W05_broken_arguments_go_on_the_wire_as_a_json_object_that_keeps_the_raw_text",
            "unit/llm/test_chat_encoding.py::test_W05_lone_surrogates_in_arguments_are_replaced_escaped_or_not",
            "unit/llm/test_chat_encoding.py::test_W05_sound_arguments_stay_as_the_model_wrote_them",
        ),
    ),
    "W06": Requirement(
        "CASES",
        "all",
        ("acceptance/test_wire.py::test_W06_calls_of_a_message_that_was_cut_are_not_executed",),
    ),
    "W07": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_wire.py::test_W07_an_invalid_call_is_a_settled_member_with_an_error_and_the_run_goes_on",
            "acceptance/test_wire.py::test_W07_calls_that_are_all_invalid_are_delivered_at_once",
            "acceptance/test_wire.py::test_W07_empty_arguments_call_a_tool_that_takes_none",
            "unit/capabilities/test_arguments.py::test_W07_arguments_against_the_schema_are_refused_with_every_place",
            "unit/capabilities/test_arguments.py::test_W07_empty_arguments_mean_an_empty_object",
            "unit/capabilities/test_arguments.py::test_W07_empty_arguments_still_obey_the_schema",
            "unit/capabilities/test_arguments.py::test_W07_unknown_name_is_looked_up_in_this_catalog_only",
            "unit/llm/test_chat_encoding.py::test_W07_no_arguments_are_an_empty_object",
        ),
    ),
    "W08": Requirement(
        "CASES",
        "raw, effective value and preview of results",
        (
            "acceptance/test_history.py::test_W08_odd_results_stand_in_the_history_as_they_stood_in_their_run",
            "unit/capabilities/test_result.py::test_W08_effective_text_is_valid_utf8_and_the_same_from_raw",
            "unit/capabilities/test_result.py::test_W08_lone_surrogate_is_kept_in_raw_and_replaced_in_the_effective_text",
            "unit/capabilities/test_result.py::test_W08_lone_surrogates_inside_of_json_are_replaced_and_said",
            "unit/capabilities/test_result.py::test_W08_raw_result_survives_its_bytes_and_gives_the_same_bytes_again",
            "unit/capabilities/test_result.py::test_W08_ten_megabytes_on_one_line_keep_their_hash_and_get_a_marked_preview",
        ),
    ),
    "S01": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S01_a_whole_stream_ends_the_run_with_its_text_and_its_usage",
            "contract/test_adapters.py::test_S01_a_story_cut_at_any_byte_is_never_whole",
            "contract/test_adapters.py::test_S01_a_whole_stream_is_its_text_and_its_usage",
            "contract/test_adapters.py::test_S01_any_split_into_chunks_gives_the_same_answer",
            "contract/test_adapters.py::test_S01_any_split_over_http_gives_the_same_answer",
            "unit/llm/test_openai_chat.py::test_S01_http_chunks_of_one_byte_give_the_same_answer",
            "unit/llm/test_openai_chat.py::test_S01_only_the_whole_stream_is_complete",
            "unit/llm/test_openai_responses.py::test_S01_only_the_whole_stream_of_responses_is_complete",
            "unit/llm/test_sse.py::test_S01_golden_stream_gives_the_same_events_when_cut_at_any_byte",
        ),
    ),
    "S02": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S02_a_stream_that_never_ends_well_fails_the_run_with_an_unknown_outcome",
            "acceptance/test_streams.py::test_S02_a_stream_without_its_last_frames_is_sent_again_and_never_joined",
            "contract/test_adapters.py::test_S02_a_connection_that_ends_at_any_byte_is_incomplete",
            "contract/test_adapters.py::test_S02_a_stream_without_its_final_frame_is_never_success",
            "contract/test_adapters.py::test_S02_an_answer_that_breaks_off_is_incomplete_and_what_came_is_kept",
            "unit/llm/test_openai_chat.py::test_S02_a_body_that_ends_before_its_frame_is_incomplete_in_every_profile",
            "unit/llm/test_openai_chat.py::test_S02_a_stream_without_its_last_frames_is_never_success",
            "unit/llm/test_openai_responses.py::test_S02_done_without_a_final_frame_is_incomplete",
        ),
    ),
    "S03": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S03_an_error_inside_of_a_200_is_a_provider_error_and_never_an_empty_answer",
            "acceptance/test_streams.py::test_S03_an_error_inside_of_a_200_is_sent_again_where_its_class_says_so",
            "contract/test_adapters.py::test_S03_an_error_in_place_of_an_answer_is_no_answer",
            "contract/test_adapters.py::test_S03_an_error_inside_a_200_stream_has_the_class_of_its_code",
            "unit/llm/test_chat_assembly.py::test_S03_an_error_is_reported_wherever_it_stands",
            "unit/llm/test_http_failures.py::test_S03_an_error_frame_is_classified_by_its_codes",
            "unit/llm/test_openai_chat.py::test_S03_an_error_inside_a_200_stream_is_a_provider_error",
            "unit/llm/test_profiles.py::test_S03_an_error_in_base_resp_is_a_provider_error_where_the_profile_says_so",
        ),
    ),
    "S04": Requirement(
        "CASES",
        "all",
        (
            "contract/test_adapters.py::test_S04_calls_over_many_deltas_stay_apart_and_whole",
            "contract/test_adapters.py::test_S04_two_calls_in_one_place_are_a_protocol_error_and_never_joined",
            "unit/llm/test_chat_assembly.py::test_S04_a_fragment_for_a_closed_call_is_an_error_in_that_profile_too",
            "unit/llm/test_chat_assembly.py::test_S04_a_profile_may_open_a_new_call_for_a_new_id",
            "unit/llm/test_chat_assembly.py::test_S04_a_second_id_on_a_used_index_is_an_error",
            "unit/llm/test_chat_assembly.py::test_S04_interleaved_indexes_stay_apart_and_keep_their_order",
            "unit/llm/test_chat_assembly.py::test_S04_names_are_not_joined",
            "unit/llm/test_chat_assembly.py::test_S04_output_after_the_finish_reason_is_an_error",
            "unit/llm/test_llama_responses.py::test_S04_a_fragment_of_no_known_item_is_a_protocol_error",
            "unit/llm/test_llama_responses.py::test_S04_an_index_of_null_is_none",
            "unit/llm/test_llama_responses.py::test_S04_calls_without_an_index_are_told_apart_by_their_ids",
            "unit/llm/test_openai_chat.py::test_S04_a_call_over_three_deltas_is_one_call",
            "unit/llm/test_openai_chat.py::test_S04_two_calls_on_one_index_are_a_protocol_error_and_never_joined",
            "unit/llm/test_openai_responses.py::test_S04_a_call_of_responses_over_three_deltas_is_one_call",
            "unit/llm/test_openai_responses.py::test_S04_two_items_in_one_place_are_a_protocol_error_and_never_joined",
            "unit/llm/test_responses_assembly.py::test_S04_a_message_holds_a_bounded_number_of_calls_and_items",
            "unit/llm/test_responses_assembly.py::test_S04_fragments_that_fit_nowhere_are_an_error",
            "unit/llm/test_responses_assembly.py::test_S04_interleaved_items_stay_apart_and_keep_their_order",
            "unit/llm/test_responses_assembly.py::test_S04_items_without_an_index_are_told_apart_by_their_ids",
        ),
    ),
    "S05": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S05_keep_alives_alone_deliver_nothing_and_do_not_hold_off_the_limit_of_the_first_output",
            "acceptance/test_streams.py::test_S05_keep_alives_are_no_first_output_and_change_no_answer",
            "contract/test_adapters.py::test_S05_keep_alives_alone_do_not_hold_off_the_limit_of_the_first_output",
            "contract/test_adapters.py::test_S05_keep_alives_are_no_output_and_change_no_answer",
            "unit/http/test_watch.py::test_S05_bytes_re_arm_the_idle_limit_and_not_the_deadline",
            "unit/llm/test_openai_chat.py::test_S05_comments_and_empty_data_are_no_output",
            "unit/llm/test_openai_chat_limits.py::test_S05_keep_alives_move_neither_the_deadline_nor_the_wait_for_output",
            "unit/llm/test_openai_chat_limits.py::test_S05_keep_alives_re_arm_the_idle_limit",
        ),
    ),
    "S06": Requirement(
        "CASES",
        "all",
        (
            "contract/test_adapters.py::test_S06_a_filtered_answer_says_so",
            "contract/test_adapters.py::test_S06_a_refusal_is_kept_apart_from_text",
            "unit/llm/test_golden_cuts.py::test_S06_S07_S08_a_stream_that_is_broken_off_anywhere_is_not_complete",
            "unit/llm/test_openai_chat.py::test_S06_a_content_filter_is_carried_as_finish_reason",
            "unit/llm/test_openai_chat.py::test_S06_a_refusal_is_kept_apart_from_text_and_counts_as_output",
            "unit/llm/test_openai_responses.py::test_S06_a_refusal_of_responses_is_kept_apart_from_text",
        ),
    ),
    "S07": Requirement(
        "CASES",
        "all but replay to chat completions",
        (
            "acceptance/test_profiles.py::test_S07_a_strict_provider_takes_a_session_with_tools_failures_and_reasoning",
            "acceptance/test_profiles.py::test_S07_the_same_session_fails_where_the_profile_does_not_know_the_dialect",
            "contract/test_adapters.py::test_S07_reasoning_is_apart_from_text",
            "unit/llm/test_chat_assembly.py::test_S07_reasoning_stays_apart_and_is_not_doubled",
            "unit/llm/test_chat_roles.py::test_S07_an_accepted_answer_keeps_its_reasoning_apart_from_its_text",
            "unit/llm/test_chat_roles.py::test_S07_reasoning_goes_back_as_the_profile_says",
            "unit/llm/test_golden_cuts.py::test_S06_S07_S08_a_stream_that_is_broken_off_anywhere_is_not_complete",
            "unit/llm/test_openai_chat.py::test_S07_reasoning_is_apart_from_text_and_counts_as_output",
            "unit/llm/test_openai_responses.py::test_S07_reasoning_is_sent_back_sealed_in_the_turn_of_its_call",
            "unit/llm/test_openai_responses.py::test_S07_reasoning_of_responses_is_apart_from_text_and_counts_as_output",
            "unit/llm/test_responses_assembly.py::test_S07_each_reasoning_item_is_kept_with_what_it_led_to",
            "unit/llm/test_responses_encoding.py::test_S07_reasoning_goes_back_as_the_profile_says",
            "unit/llm/test_responses_encoding.py::test_S07_reasoning_survives_the_store_and_reaches_the_message",
        ),
    ),
    "S08": Requirement(
        "CASES",
        "all",
        (
            "contract/test_adapters.py::test_S08_calls_stand_whatever_the_finish_reason_says",
            "unit/llm/test_golden_cuts.py::test_S06_S07_S08_a_stream_that_is_broken_off_anywhere_is_not_complete",
            "unit/llm/test_openai_chat.py::test_S08_calls_stand_although_the_finish_reason_says_stop",
            "unit/llm/test_responses_assembly.py::test_S08_an_unfinished_call_in_a_completed_answer_is_an_error",
        ),
    ),
    "S09": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S09_a_failed_response_is_sent_again_where_its_class_says_so",
            "acceptance/test_streams.py::test_S09_a_failed_response_of_another_class_ends_the_run_at_once",
            "acceptance/test_streams.py::test_S09_a_run_over_responses_calls_its_tools_and_ends_by_a_completed_answer",
            "acceptance/test_streams.py::test_S09_an_incomplete_response_is_a_truncated_answer_and_is_not_sent_again",
            "unit/llm/test_llama_responses.py::test_S09_a_recorded_stream_of_a_real_server_is_read",
            "unit/llm/test_openai_responses.py::test_S09_a_bare_error_event_is_a_provider_error",
            "unit/llm/test_openai_responses.py::test_S09_completed_is_complete_also_when_nothing_was_said",
            "unit/llm/test_openai_responses.py::test_S09_failed_is_a_provider_error",
            "unit/llm/test_openai_responses.py::test_S09_incomplete_is_a_truncated_answer_and_no_failure",
            "unit/llm/test_responses_assembly.py::test_S09_a_failed_response_and_an_error_event_are_reported_with_their_codes",
            "unit/llm/test_responses_assembly.py::test_S09_the_final_frame_must_show_what_was_streamed",
            "unit/llm/test_responses_assembly.py::test_S09_what_only_the_final_frame_shows_is_taken_from_it",
            "unit/llm/test_responses_assembly.py::test_S09_whatever_cuts_an_answer_off_it_is_truncated",
        ),
    ),
    "S10": Requirement(
        "CASES",
        "all",
        (
            "acceptance/test_streams.py::test_S10_a_compressed_stream_is_read_like_any_other",
            "acceptance/test_streams.py::test_S10_a_stream_that_stalls_ends_by_the_idle_limit_and_is_sent_again",
            "acceptance/test_streams.py::test_S10_a_web_page_in_place_of_a_stream_fails_the_run_and_none_of_it_is_shown",
            "acceptance/test_streams.py::test_S10_a_whole_json_answer_in_place_of_a_stream_is_the_answer",
            "contract/test_adapters.py::test_S10_a_gzip_stream_is_read_like_any_other",
            "contract/test_adapters.py::test_S10_a_json_answer_in_place_of_a_stream_is_complete_when_whole",
            "contract/test_adapters.py::test_S10_a_stall_ends_by_the_deadline_always",
            "contract/test_adapters.py::test_S10_a_stall_ends_by_the_idle_limit_if_one_is_set",
            "contract/test_adapters.py::test_S10_a_web_page_in_place_of_a_stream_is_a_protocol_error",
            "unit/llm/test_openai_chat.py::test_S10_a_gzip_stream_is_read_like_any_other",
            "unit/llm/test_openai_chat.py::test_S10_a_json_answer_in_place_of_a_stream_is_complete_when_whole",
            "unit/llm/test_openai_chat.py::test_S10_a_web_page_in_place_of_a_stream_is_a_protocol_error",
            "unit/llm/test_openai_chat_limits.py::test_S10_a_stall_after_output_ends_by_the_idle_limit_if_one_is_set",
            "unit/llm/test_openai_chat_limits.py::test_S10_a_stall_ends_by_the_deadline_always",
            "unit/llm/test_openai_responses.py::test_S10_a_json_response_in_place_of_a_stream_is_complete_when_whole",
            "contract/test_adapters.py::test_S10_a_packing_of_packings_is_not_unpacked",
        ),
    ),
    "K01": Requirement(
        "CASES",
        "one run, without compaction",
        (
            "acceptance/test_history.py::test_K01_forty_constraints_of_one_run_stand_verbatim_and_in_order_in_each_later_request",
        ),
    ),
    "K04": Requirement(
        "CASES",
        "the check of a release",
        (
            "unit/domain/test_release.py::test_K04_fixed_part_at_the_budget_is_refused_with_the_breakdown",
            "unit/domain/test_release.py::test_K04_fixed_part_between_trigger_and_budget_is_accepted_with_a_warning",
            "unit/domain/test_release.py::test_K04_warning_begins_exactly_at_the_trigger",
        ),
    ),
    "K08": Requirement(
        "CASES",
        "the check before every call; compaction is not built yet",
        (
            "acceptance/test_history.py::test_K08_the_window_is_checked_before_each_of_many_calls_and_ends_the_run_with_numbers",
        ),
    ),
    "K09": Requirement(
        "CASES",
        "all",
        ("acceptance/test_history.py::test_K09_the_first_message_is_the_same_bytes_forty_runs_later",),
    ),
    "K10": Requirement(
        "CASES",
        "gate and display; the trigger comes with compaction",
        (
            "acceptance/test_profiles.py::test_K10_a_request_of_exactly_the_budget_leaves_and_one_token_more_does_not",
            "acceptance/test_profiles.py::test_K10_gate_and_display_use_one_number_and_it_is_that_of_the_bytes",
            "acceptance/test_profiles.py::test_K10_input_and_output_fit_the_window_with_a_limit_of_384000_too",
            "acceptance/test_profiles.py::test_K10_the_limit_of_the_model_is_what_a_request_asks_for_at_most",
        ),
    ),
}
